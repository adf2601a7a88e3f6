"""The recipe's table `sources`: named bodies of text, each with its own inputs, language and rules."""

import re
from collections.abc import Mapping
from itertools import combinations
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, PositiveInt, WithJsonSchema, model_validator

from anadil.recipe.clean import OF_DOCUMENTS, Best, Clean
from anadil.recipe.fields import NEUTRAL, StrictModel, Text
from anadil.recipe.filter_rules import NO_RULES
from anadil.text.filter_rules import MODES, Mode
from anadil.text.language import load_language
from anadil.text.language_data import NO_LANGUAGE, Language, UnknownLanguageError
from anadil.text.parallel import DIRECTIONS, both_languages, is_pair

MAX_EPOCHS = 4
"""Passes over a source that are nearly as good as new text. Source: Muennighoff et al. 2023, arXiv:2305.16264."""
WRITTEN_LANGUAGE = "en"
"""Language of the text that a base writes, where the recipe names none: nearly all bases have met English most. It is
never that of the recipe without being named, since a base writes little in the language that it is to be taught."""
MIN_WRITTEN = 1_000
"""Fewest tokens that a base is asked for. Chosen by us: a corpus needs two documents, and cleaning drops some."""
JUDGES_WRITTEN = re.compile(
    r"empty|language|script|spelling|kana|mixed|ng_words|quality|top_ngram|duplicate_\w+"
)
"""Rules that drop what a base wrote: language, repetition, and what the recipe names. All others are counted. They were made
for pages, and of two good chats of SmolLM2-135M `sentence_length` dropped both: the ends of turns end no sentence."""
# A plain 500000000 is misread by a zero, and papers write 500M. Not `m`, which is read as a thousandth; k is a thousand.
UNITS = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKMBT])")
NAME = re.compile(r"^[a-z][a-z0-9_]{0,29}$")


def _is_name(name: str) -> str:
    """Return a name as it is: it becomes part of the names of steps, artifacts and metrics."""
    if not NAME.fullmatch(name):
        raise ValueError(
            "a source's name has a letter of a-z first, then letters, digits and _, 30 at most; its place belongs into `inputs`"
        )
    return name


SourceName = Annotated[
    str, AfterValidator(_is_name), WithJsonSchema({"type": "string", "pattern": NAME.pattern})
]


def clean_of_written(clean: Clean) -> Clean:
    """Return the settings by which text of the base itself is cleaned."""
    modes: dict[str, Mode] = {name: "report" for name in MODES if not JUDGES_WRITTEN.fullmatch(name)}
    update = {"modes": modes | clean.modes} if clean.rules != NO_RULES else {}
    # The text lies in files of this program's own, and a chat without a line is none.
    return clean.model_copy(update={"text_field": "text", "line_language": False, **update})


def has_language(language: str) -> str:
    """Return the language as it is, or raise with the remedy."""
    try:
        _one_language(language)
    except UnknownLanguageError as error:
        # A typo is likelier than code, so that the id that was meant comes first.
        raise ValueError(
            f"{error}; text in no language, such as code, has `language: {NO_LANGUAGE}`"
        ) from None
    return language


def _one_language(language: str) -> Language:
    """Load a language that somebody names; two at once are only ours, for the recipe that cleans pairs."""
    if is_pair(language):
        raise ValueError("names two languages; parallel text is a source with `pairs: [en, az]`")
    return load_language(language)


def is_side(language: str) -> str:
    """Return the language of a side of parallel text, or raise with the remedy."""
    if _one_language(language).is_none:
        raise ValueError(f"`{NO_LANGUAGE}` is no language that a side of pairs can be in; name the language")
    return language


def is_taught(language: str) -> str:
    """Return a language that can be taught, or raise with the remedy."""
    if _one_language(language).is_none:
        raise ValueError(
            f"`{NO_LANGUAGE}` is no language that can be taught; name the language here, and text in no language, such as "
            f"code, as a source: `sources: {{code: {{inputs: [...], language: {NO_LANGUAGE}}}}}`"
        )
    return language


def _plain_number(value: object) -> object:
    """Return the number that a text such as `500M` means; any other value is judged as it is."""
    match = COUNT.fullmatch(value) if isinstance(value, str) else None
    return round(float(match[1]) * UNITS[match[2]]) if match else value


Side = Annotated[Text, AfterValidator(is_side)]
TokenCount = Annotated[
    PositiveInt,
    BeforeValidator(_plain_number),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {"type": "string", "pattern": f"^{COUNT.pattern}$"},
            ]
        }
    ),
]


class Source(StrictModel):
    """A body of text that phases of training draw from by `mix`."""

    # Decided by the content of its corpus, which is an input of the stages that read it.
    inputs: Annotated[tuple[str, ...], NEUTRAL] = ()
    """Files as of `clean.inputs`."""
    language: Annotated[Text | None, AfterValidator(lambda each: each and has_language(each)), NEUTRAL] = None
    """Language of the text, as `language` of the recipe; `none`: it is in no language, such as code, and stays as it is; left out, that of the recipe."""
    pairs: Annotated[tuple[Side, Side] | None, NEUTRAL] = None
    """Parallel text: languages of its two sides, such as `[en, az]`. Files are `.jsonl`, `.json`, `.parquet`, `.csv`, `.tsv` or `.xlsx` with a column for each, named by its id; a table without names has the first side first. Each pair becomes two documents, one a direction."""
    clean: Annotated[Clean, NEUTRAL] = Clean()
    """Keys of the section `clean` that are others for this source; a key left out is that of the recipe."""
    # A key of its corpus.
    quality: Annotated[Best | None, NEUTRAL] = None
    """`top 15 %`: `clean.quality` of this source."""
    max_tokens: TokenCount | None = None
    """Most tokens that are used, such as `500M`, a random sample of its documents; left out, all. In a retraining it counts for the new text alone."""
    max_epochs: PositiveInt = MAX_EPOCHS
    """Most passes over it; then its share goes to the others. Source: arXiv:2305.16264."""

    written_by: Literal["base"] | None = None
    """`base`: the base model writes the text itself, as replay against forgetting. `tokens` says how much, and `language` left out is `en`. Source: arXiv:2605.26097."""
    tokens: TokenCount | None = None
    """Tokens that the base writes, such as `5M`, before cleaning."""
    # It decides the model alone, which names this key.
    teacher: Annotated[Literal["base"] | None, NEUTRAL] = None
    """`base`: training keeps to the probabilities that the base model gives to this text, against forgetting. `pretrain.distillation` has the weight. Source: arXiv:2605.26097."""

    @model_validator(mode="after")
    def _keeps_the_best(self) -> "Source":
        if self.quality is not None and self.clean.quality != self.quality:
            values = {key: getattr(self.clean, key) for key in self.clean.model_fields_set}
            object.__setattr__(self, "clean", Clean(**values | {"quality": self.quality}))
        return self

    @model_validator(mode="after")
    def _names_its_text(self) -> "Source":
        if self.clean.inputs:
            raise ValueError("clean.inputs: the files of a source are its `inputs`; move them there")
        if self.written_by:
            return self._with_tokens()
        if self.tokens is not None:
            raise ValueError(
                "tokens is what the base writes; add `written_by: base`, or set `max_tokens` to use less of the inputs"
            )
        if not self.inputs:
            raise ValueError("inputs names no file; list the text of the source")
        return self

    @model_validator(mode="after")
    def _pairs_fit(self) -> "Source":
        if self.pairs is None:
            return self
        if self.written_by:
            raise ValueError(
                "pairs and written_by are both given; a base writes text in one language, so leave pairs out"
            )
        if self.language is not None:
            raise ValueError(
                f"pairs and language are both given; pairs {list(self.pairs)} says the languages, so leave language out"
            )
        if len({load_language(side).code for side in self.pairs}) == 1:
            raise ValueError(f"pairs {list(self.pairs)} names one language twice; name that of each side")
        defaults = Clean()
        if idle := [
            f"clean.{key}" for key in OF_DOCUMENTS if getattr(self.clean, key) != getattr(defaults, key)
        ]:
            raise ValueError(
                f"{', '.join(idle)} would decide nothing: rules and fields are those of documents, and pairs are judged by "
                "their sides; leave out such keys"
            )
        return self

    def language_in(self, recipe_language: str) -> str:
        """Return the language of the text in a recipe that teaches another."""
        if self.pairs:
            return both_languages(self.pairs)
        return self.language or (WRITTEN_LANGUAGE if self.written_by else recipe_language)

    @property
    def directions(self) -> int:
        """Documents that are made of a record."""
        return DIRECTIONS if self.pairs else 1

    def _with_tokens(self) -> "Source":
        """Return a source that the base writes, or raise with the remedy."""
        if self.inputs:
            raise ValueError(
                f"written_by: {self.written_by} and inputs ({self.inputs[0]}) are both given; give the files a source of their own"
            )
        if self.clean.since is not None:
            raise ValueError(
                "clean.since adds files to a corpus, and a base writes its text anew; leave it out"
            )
        if self.tokens is None:
            raise ValueError("tokens is missing; say how much the base writes, such as `tokens: 5M`")
        if self.tokens < MIN_WRITTEN:
            raise ValueError(
                f"tokens: {self.tokens} are too few for a corpus; ask for {MIN_WRITTEN:,} or more"
            )
        return self


def refuse_source_mistakes(language: str, clean: Clean, sources: Mapping[str, Source]) -> None:
    """Refuse sources that do not fit each other, or the rest of the recipe."""
    mistakes = []
    if clean.inputs:
        mistakes.append(
            "clean.inputs and sources are both given; name the files of clean.inputs as inputs of a source"
        )
    if clean.since is not None:
        mistakes.append(
            "clean.since is one corpus; give it to the source that it belongs to, as `sources.<name>.clean.since`"
        )
    for (name, one), (other, two) in combinations(sources.items(), 2):
        if same := sorted({*one.inputs} & {*two.inputs}):
            mistakes.append(
                f"sources.{name}.inputs and sources.{other}.inputs both name {', '.join(same[:3])}; "
                "leave the files out of one of them"
            )
    written = [name for name, source in sources.items() if source.written_by]
    if len(written) > 1:
        # Document 7 of a base is the same text in each.
        mistakes.append(
            f"sources.{' and sources.'.join(written)} are all written by the base, which writes the same text for each; "
            "leave one, with the tokens of all"
        )
    # Sources are compared by signatures, which have to be made in one way.
    settings = {
        name: (each.clean.minhash_bands, each.clean.minhash_rows, each.clean.minhash_shingle)
        for name, each in sources.items()
    }
    first = next(iter(settings))
    if differing := [name for name, values in settings.items() if values != settings[first]]:
        name = differing[0]
        mistakes.append(
            f"sources.{name}.clean: minhash_bands, _rows and _shingle are {settings[name]}, and those of sources.{first} "
            f"{settings[first]}: near duplicates in two sources could not be found; set them in `clean`, for all"
        )
    if not target_sources(language, sources):
        languages = ", ".join(
            f"{name}: {source.language_in(language)}{', by the base' if source.written_by else ''}"
            for name, source in sources.items()
        )
        mistakes.append(
            f"none of the sources is in the language that is taught, {language} ({languages}); leave out `language` of one"
        )
    if mistakes:
        raise ValueError("; ".join(mistakes))


def target_sources(language: str, sources: Mapping[str, Source]) -> tuple[str, ...]:
    """Return the sources in the language that is taught, however they spell its id, but what the base writes in it."""
    # `aze_Latn` and `az` are one language: text in it must not be scored as another. What a base writes in it teaches it
    # nothing, and a tokenizer would learn its mistakes.
    code = load_language(language).code
    return tuple(
        name
        for name, source in sources.items()
        if not source.written_by and load_language(source.language_in(language)).code == code
    )
