"""The recipe's section `clean`: raw text that is read, and the rules by which it becomes a corpus."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, WithJsonSchema, model_validator

from anadil.core.format import MIB
from anadil.recipe.fields import NEUTRAL, Fraction, Place, StrictModel, Text
from anadil.recipe.filter_rules import NO_RULES, Rules, RulesOrNone
from anadil.text.filter_rules import Mode, RuleName

ExtractMode = Literal["fast", "balanced", "precision"]
TxtDocument = Literal["guess", "file", "line", "block"]
OF_RULES = ("modes", "ng_words", "quality_model", "quality")
"""Keys that decide nothing where no rule judges."""
OF_DOCUMENTS = (
    *OF_RULES, "as_is", "rules", "text_field", "txt_document", "extract", "tables", "code", "line_language",
)  # fmt: skip
"""Keys that decide nothing of parallel text."""


BEST = re.compile(r"top ?([0-9]+(?:\.[0-9]+)?) ?%")
ALL = 100.0
"""Per cent."""


def _is_best(value: object) -> object:
    """Return `top 15 %` as it is, or raise with the remedy."""
    match = BEST.fullmatch(str(value))
    if not match or not 0 < float(match[1]) < ALL:
        raise ValueError("is no share of the best. Write one above 0 and below 100, such as `top 15 %`")
    return value


Best = Annotated[
    str, BeforeValidator(_is_best), WithJsonSchema({"type": "string", "pattern": f"^{BEST.pattern}$"})
]


def _is_function(value: str) -> str:
    """Return `FILE.py:FUNCTION` as it is, or raise with the remedy."""
    file, _, name = value.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier() or set("*?[") & set(file):
        raise ValueError(
            "names no function of a Python file. Write FILE.py:FUNCTION, such as rules.py:no_lyrics"
        )
    return value


class Clean(StrictModel):
    """raw -> corpus."""

    inputs: tuple[str, ...] = ()
    """Files, globs, `s3://` or `hf://datasets/ORG/NAME@COMMIT/PATH` URIs of `.jsonl[.gz|.zst]`, `.json[.gz|.zst]`, `.csv[.gz|.zst]`, `.tsv[.gz|.zst]`, `.xlsx`, `.txt`, `.html`, `.warc[.wet][.gz]` and `.parquet`."""
    text_field: str = "text"
    """Key (JSON) or column (Parquet, CSV, TSV) that holds the text, or the path to it, such as `document.text`."""
    txt_document: TxtDocument = "guess"
    """A document of a `.txt`: the `file`, a `line`, a `block` between blank lines, or `guess`, by the file's beginning. A guess other than `file` needs twenty long lines that end as sentences do."""
    as_is: bool = False
    """The inputs are a corpus that is clean already: its texts stay as they are, no rule judges them, near duplicates stay, and only empty documents and copies go."""
    extract: ExtractMode = "balanced"
    """How web pages become text: `fast`; `precision`, twice as slow; `balanced`, which asks it where `fast` is in doubt."""
    tables: bool = True
    """Keep tables of web pages, a row a line."""
    code: bool = True
    """Keep preformatted blocks of web pages."""
    url_lists: tuple[str, ...] = ()
    """Categories of UT1 (directories with `domains` and `urls`), or files with a host or address a line, also packed or archives: pages left out."""
    url_allow: tuple[str, ...] = ()
    """Hosts and addresses that stay, no matter what the lists say, such as `news.example.az`."""
    pii: bool = False
    """Replace e-mail addresses, telephone, card and personal numbers by `<EMAIL>`, `<PHONE>` and so on."""
    decontaminate: bool = False
    """Drop documents that hold text of `evaluate.heldout`, `evaluate.questions`, `evaluate.task_items`, files of `evaluate.tasks`, `finetune.inputs` or `finetune.preference.inputs`: a run of 8 words or 40 characters."""
    line_language: bool = True
    """Remove lines and sentences of 40 characters and more that are in another language; a document full of them is dropped."""
    rules: RulesOrNone = Rules()
    """Limits of the document filters, or `none`: no limit judges, and only empty documents go."""
    modes: dict[RuleName, Mode] = Field(default_factory=dict)
    """Rule -> `enforce`, which drops documents, or `report`, which only counts them; watch a new limit before it drops."""
    ng_words: tuple[Text, ...] = ()
    """Files or `s3://` URIs of words, one a line, that a page nobody wants is full of."""
    quality_model: Text | None = None
    """A fastText classifier, file or `s3://` URI: documents with a score under `rules.min_quality` are dropped. Never downloaded."""
    quality: Best | None = None
    """`top 15 %`: the best texts by `quality_model` stay, with at least this share of the words that the rules and dedup leave, in place of `rules.min_quality`."""
    quality_label: Text = "__label__hq"
    """Its label for good text, whose probability is the score. Source: DCLM, arXiv:2406.11794."""
    # Content and function are an input of the stage; the file's place decides nothing.
    filters: Annotated[tuple[Annotated[Text, AfterValidator(_is_function)], ...], NEUTRAL] = ()
    """Filters of your own, `FILE.py:FUNCTION`, local or on `s3://`. Each gets the text and the statistics of a document that no rule drops, and returns the reason to drop it, or None. The file is code that runs: read it before you use a recipe of others."""
    max_shared: Fraction = 0.2
    """Largest share of the documents of a host, or of a file whose records name no address, that may have a sentence or line of 20 letters in common: what more of them share, and ten at least, is taken out of all. 1 keeps everything."""
    minhash_bands: PositiveInt = 14
    """Bands of the MinHash signature. Source: FineWeb, arXiv:2406.17557, section 3.4."""
    minhash_rows: PositiveInt = 8
    """Hashes in a band. Source: FineWeb, arXiv:2406.17557, section 3.4."""
    minhash_shingle: PositiveInt = 5
    """Words in a shingle, or characters where a language writes no spaces. Source: FineWeb; Swallow, arXiv:2404.17733."""
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Share of documents, chosen by the hash of their text among those that share no run of 8 words with others, that training never sees."""
    heldout_max_documents: PositiveInt = 2_000
    """Most held-out documents: enough for an interval on bits per byte, few enough to score often."""
    max_bad_records: Fraction = 0.001
    """Share of unreadable records that is tolerated (and reported) before the stage refuses its input."""
    # Its content decides, which is an input of the stage; its place does not.
    since: Annotated[Place | None, NEUTRAL] = None
    """An earlier corpus that new documents are added to: its files and its held-out part stay as they are."""
    workers: Annotated[PositiveInt | None, NEUTRAL] = None
    """Processes that work side by side; left out, one for each CPU. The result does not depend on it."""
    engine: Annotated[Literal["processes", "ray", "job"], NEUTRAL] = "processes"
    """Executor that runs them: processes of this machine, Ray (here, or where RAY_ADDRESS says), or pods of a Kubernetes Indexed Job. The result does not depend on it."""
    shard_bytes: Annotated[int, Field(ge=MIB), NEUTRAL] = 256 * MIB
    """Most bytes of the inputs that a process works on before it writes, at least 1 MiB. The result does not depend on it."""

    @model_validator(mode="after")
    def _what_is_clean_stays(self) -> "Clean":
        if not self.as_is:
            return self
        # A validator that runs before the fields are read would make JSON's lists wrong for tuples.
        for key, value in {"rules": NO_RULES, "line_language": False}.items():
            if key not in self.model_fields_set:
                object.__setattr__(self, key, value)
        changes = {
            "rules": self.rules != NO_RULES,
            "line_language": self.line_language,
            "pii": self.pii,
            "filters": self.filters,
        }
        if named := [key for key, is_set in changes.items() if is_set]:
            raise ValueError(
                f"as_is leaves every text as it is, and {' and '.join(named)} would change or drop some; leave "
                f"{'it' if len(named) == 1 else 'them'} out, or as_is"
            )
        return self

    @property
    def best_share(self) -> float | None:
        """Share of the words that `quality` keeps; None where it is not set."""
        match = BEST.fullmatch(self.quality or "")
        return float(match[1]) / ALL if match else None

    @model_validator(mode="after")
    def _ranks_by_a_model(self) -> "Clean":
        if self.quality is None:
            return self
        if self.quality_model is None:
            raise ValueError(
                f"quality: {self.quality} needs scores. Name a classifier as quality_model, such as `anadil clean teach` makes"
            )
        others = {
            "rules.min_quality": self.rules != NO_RULES and self.rules.min_quality is not None,
            "modes.quality": self.modes.get("quality") == "report",
        }
        if other := next((name for name, is_set in others.items() if is_set), ""):
            raise ValueError(
                f"quality: {self.quality} and {other} both say what stays. Leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _has_rules_where_keys_need_them(self) -> "Clean":
        if self.rules == NO_RULES and (idle := [key for key in OF_RULES if getattr(self, key)]):
            raise ValueError(
                f"rules: {NO_RULES} lets no rule judge, so {' and '.join(idle)} would decide nothing; leave "
                f"{'it' if len(idle) == 1 else 'them'} out, or write limits as rules ({{}}: those of the language)"
            )
        return self
