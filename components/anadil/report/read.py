"""JSON files and manifests of the other stages, read once.

The stage's runner has verified the files. A file that the flow always writes must exist; a field in it may be missing.
"""

import dataclasses
import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import TINY
from anadil.artifacts.line_reader import DAMAGED, bounded_lines
from anadil.artifacts.packaged_base import PACKAGED
from anadil.core.errors import DataError
from anadil.core.format import DASH, number
from anadil.core.json_text import parse_json
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.text.language import load_language
from anadil.text.language_data import Language, UnknownLanguageError

Json = dict[str, object]
SUMMED = (
    "in", "kept", "records", "dropped", "words_out", "bytes_in", "bytes_out", "by_source", "by_licence", "hosts",
    "personal_data", "escaped", "data_sets",
)  # fmt: skip
"""Keys of `stats.json` that are counts, so that those of several corpora have a sum."""
LOCAL_PREFIXES = ("/", "~", "./", "../", "\\")
NUM_SAMPLES = 3
"""Documents of the corpus that the page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLanguage:
    """The language of a corpus or model."""

    code: str
    name: str
    lang: str
    """Value of HTML's `lang`; empty where there is no language, or two."""
    word_note: str = ""
    """Meaning of "word" in scripts without spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """One corpus."""

    source: str = ""
    """Its name in the recipe; empty: the recipe names no sources."""
    manifest: Manifest
    stats: Json
    recipe: Json
    """The resolved recipe that it was made by, with the licences of the latest."""
    rejected: Mapping[str, list[Json]] = dataclasses.field(default_factory=dict)
    """Rule -> dropped documents that were kept as samples."""
    samples: Sequence[Json] = ()
    """Kept documents."""

    @property
    def language(self) -> str:
        """Id of its language in the recipe."""
        return str(self.recipe.get("language") or DASH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Inputs of the page."""

    recipe: Recipe
    language: Language
    base_name: str
    manifests: dict[str, Manifest]
    corpora: tuple[CorpusFacts, ...]
    """In the recipe's order."""
    stats: Json
    """Counts of all corpora together; of one, its `stats.json`."""
    fertility: Json
    choice: Json
    trial: Json
    tokenizer_speed: Json
    """Candidate -> tokens per CPU-second."""
    training: list[Json]
    training_summary: Json
    admission: Json
    """`admission.json`: the checks of new text; empty for a run that retrains nothing."""
    merge: Json
    """`merge.json`: what was merged with which weights; empty without a merge."""
    mask_audit: Json
    finetuning: list[Json]
    finetuning_summary: Json
    preference: list[Json]
    scores: Json
    places: dict[str, str]
    """Artifact word -> its place relative to the report's, where both lie in one storage."""


def read_facts(job: Job) -> Facts:
    """Read the artifacts of a run."""
    inputs = job.inputs
    tokenizer, model, scores = (inputs[word] for word in ("tokenizer", "model", "scores"))
    trial, merged, adapter = (inputs.get(word) for word in ("trial", "merged", "adapter"))
    manifests = {word: each for word, path in inputs.items() if (each := artifact.read_manifest(str(path)))}
    manifests |= {word: stream.manifest for word, stream in job.streams.items()}
    corpora = tuple(_corpus(job.recipe, *each) for each in job.of_sources("corpus").items())
    return Facts(
        recipe=job.recipe,
        language=load_language(job.recipe.language),
        base_name=base_name(job.recipe.base.model),
        manifests=manifests,
        corpora=corpora,
        stats=sum_stats([each.stats for each in corpora]),
        fertility=_table(tokenizer / "fertility.json"),
        choice=_table(tokenizer / "choice.json", needed=False),
        tokenizer_speed=_table(tokenizer / "speed.json", needed=False),
        trial=_table(trial / "trial.json") if trial else {},
        training=_lines(model / "training.jsonl"),
        training_summary=_table(model / "training.json"),
        admission=_table(inputs["admission"] / "admission.json") if "admission" in inputs else {},
        merge=_table(merged / "merge.json") if merged else {},
        mask_audit=_table(adapter / "mask_audit.json") if adapter else {},
        finetuning=_lines(adapter / "training.jsonl", needed=False) if adapter else [],
        finetuning_summary=_table(adapter / "training.json", needed=False) if adapter else {},
        preference=_lines(adapter / "preference.jsonl", needed=False) if adapter else [],
        scores=_table(scores / "scores.json"),
        places={word: place for word, uri in job.uris.items() if (place := relative_place(job.target, uri))},
    )


def _corpus(recipe: Recipe, source: str, corpus: Path) -> CorpusFacts:
    of_source = recipe.of_source(source) if source else recipe
    return CorpusFacts(
        source=source,
        manifest=artifact.finished_manifest(str(corpus), "corpus"),
        stats=_table(corpus / "stats.json"),
        recipe=of_source.model_dump(mode="json"),
        rejected={
            path.name.partition(".")[0]: _samples(path, 1)
            for path in sorted((corpus / "rejected").glob("*.jsonl*"))
        },
        samples=_samples(corpus / "samples/kept.jsonl.zst", NUM_SAMPLES),
    )


def sum_stats(several: Sequence[Json]) -> Json:
    """Return the counts of some `stats.json` together; those of one are as they are."""
    if len(several) == 1:
        return several[0]
    sums: Json = {}
    for stats in several:
        sums = _added(sums, {key: stats[key] for key in SUMMED if key in stats})
    return sums


def _added(one: Json, other: Json) -> Json:
    sums = dict(one)
    for key, value in other.items():
        if isinstance(value, dict):
            sums[key] = _added(table_of(sums.get(key)), table_of(value))
        elif isinstance(value, list):
            sums[key] = [*list_of(sums.get(key)), *value]
        elif (count := number(value)) is not None:
            sums[key] = (number(sums.get(key)) or 0) + count
    return sums


def relative_place(target: str, uri: str) -> str:
    """Path of an artifact from the report, such as `../../model/0a1b`; empty where a link would not serve."""
    if not target or ("://" in target) != ("://" in uri):
        return ""
    # Both become paths first: `relpath` would take a scheme for a directory.
    place = posixpath.relpath(uri.replace("://", "/"), target.replace("://", "/"))
    # Only a neighbour: a longer way would tell the directories of a machine.
    return place if re.fullmatch(r"(\.\./){1,2}[\w.-]+(/[\w.-]+)?", place) else ""


def base_name(model: str) -> str:
    """Display name of the base model; never a machine's directory."""
    if base := PACKAGED.get(model):
        return base.name
    return "a tiny Llama" if model == TINY else last_part(model)


def last_part(place: str) -> str:
    """The last part of a path or URI, which says nothing about the machine it is on."""
    return place.rstrip("/").replace("\\", "/").rsplit("/", 1)[-1] or place


def portable(place: str) -> str:
    """A value of the recipe without the directories of a machine."""
    is_place = place.startswith(LOCAL_PREFIXES) or "://" in place
    return f"\N{HORIZONTAL ELLIPSIS}/{last_part(place)}" if is_place else place


def named_tables(value: object) -> list[tuple[str, Json]]:
    """Tables with their names, from a table of tables or a list of tables with a `name`."""
    if isinstance(value, dict):
        return [(str(name), table_of(item)) for name, item in value.items() if isinstance(item, dict)]
    tables = [table_of(item) for item in list_of(value)]
    return [(str(table.get("name") or place + 1), table) for place, table in enumerate(tables)]


def series(lines: list[Json], key: str) -> tuple[tuple[float, float], ...]:
    """(step, value) of every line that holds both as finite numbers, by step."""
    points = (
        (number(line.get("step", place)), number(line.get(key))) for place, line in enumerate(lines, start=1)
    )
    return tuple(sorted((float(x), float(y)) for x, y in points if x is not None and y is not None))


def field(data: object, path: str) -> object:
    """The value at `a.b.c` of nested tables; None where any of them is missing."""
    for key in path.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data


def table_of(value: object) -> Json:
    """The value where it is a JSON table, else an empty one."""
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def list_of(value: object) -> list[object]:
    """The value where it is a list, else an empty one."""
    return list(value) if isinstance(value, list) else []


def _table(path: Path, *, needed: bool = True) -> Json:
    text = _text(path, needed=needed)
    return table_of(_parse(text, path)) if text else {}


def _lines(path: Path, *, needed: bool = True) -> list[Json]:
    # Not `splitlines`: a text may hold U+2028 or U+0085, which end no line of JSON lines.
    lines = [line for line in _text(path, needed=needed).split("\n") if line.strip()]
    return [table_of(_parse(line, path)) for line in lines]


def _samples(path: Path, most: int) -> list[Json]:
    """The first lines of a file that may be packed; none where the file is not there."""
    if not path.is_file():
        return []
    try:
        lines = [line for line in itertools.islice(bounded_lines(path), most) if isinstance(line, bytes)]
        return [table_of(_parse(line.decode(), path)) for line in lines]
    except (*DAMAGED, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); make the corpus again") from None


def _text(path: Path, *, needed: bool) -> str:
    if not path.is_file() and not needed:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        word = path.parent.name
        raise DataError(f"{path}: cannot be read ({error}); make the {word} artifact again") from None


def _parse(text: str, path: Path) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{path}: no JSON ({error}); run the stage that writes it again") from None


def recipe_language(recipe: Json) -> NamedLanguage:
    """The language of a recipe as a manifest holds it; the file's name if its pack is gone."""
    named = str(recipe.get("language") or "")
    try:
        language = load_language(named)
    except UnknownLanguageError:
        name = last_part(named).removesuffix(".yaml") or DASH
        return NamedLanguage(code=name, name=name, lang=name)
    lang = "" if language.is_none else language.code
    return NamedLanguage(code=language.code, name=language.name, lang=lang, word_note=language.word_note)
