"""JSON files and manifests of the other stages, read once.

The stage's runner has verified the files. A file that the flow always writes must exist; a field in it may be missing.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.line_reader import DAMAGED, bounded_lines
from anadil.core.errors import DataError
from anadil.core.format import DASH, number
from anadil.core.stages import FLOW, brought, last_form
from anadil.page.part import Part
from anadil.page.values import (
    Json,
    base_name,
    json_lines,
    json_table,
    last_part,
    list_of,
    parsed,
    relative_place,
    table_of,
)
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job, kind_of
from anadil.text.language import load_language
from anadil.text.language_data import Language, UnknownLanguageError

SUMMED = (
    "in", "kept", "records", "dropped", "words_out", "bytes_in", "bytes_out", "by_source", "by_licence", "hosts",
    "personal_data", "escaped", "data_sets",
)  # fmt: skip
"""Keys of `stats.json` that are counts, so that those of several corpora have a sum."""
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
    parts: Mapping[str, Part]
    """Artifact word -> part of the page that a stage brings, in the order of the flow."""
    winner: str
    """Tokenizer that a stage chose behind the comparison by cost; empty where none did."""
    tokenizer_speed: Json
    """Candidate -> tokens per CPU-second."""
    training: list[Json]
    training_summary: Json
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
    adapter = inputs.get("adapter")
    manifests = {word: each for word, path in inputs.items() if (each := artifact.read_manifest(str(path)))}
    manifests |= {word: stream.manifest for word, stream in job.streams.items()}
    corpora = tuple(_corpus(job.recipe, *each) for each in job.of_sources("corpus").items())
    made = {
        word: json_table(inputs[word] / view.FILE) if word in inputs and view.FILE else {}
        for word, view in views().items()
        if any(kind_of(each) == word for each in manifests)
    }
    return Facts(
        recipe=job.recipe,
        language=load_language(job.recipe.language),
        base_name=base_name(job.recipe.base.model),
        manifests=manifests,
        corpora=corpora,
        stats=sum_stats([each.stats for each in corpora]),
        fertility=json_table(tokenizer / "fertility.json"),
        choice=json_table(tokenizer / "choice.json", needed=False),
        tokenizer_speed=json_table(tokenizer / "speed.json", needed=False),
        winner=str(made.get(last_form("tokenizer", made), {}).get("winner") or ""),
        parts=parts_of(made, job.recipe.model_dump(mode="json"), manifests),
        training=json_lines(model / "training.jsonl"),
        training_summary=json_table(model / "training.json"),
        mask_audit=json_table(adapter / "mask_audit.json") if adapter else {},
        finetuning=json_lines(adapter / "training.jsonl", needed=False) if adapter else [],
        finetuning_summary=json_table(adapter / "training.json", needed=False) if adapter else {},
        preference=json_lines(adapter / "preference.jsonl", needed=False) if adapter else [],
        scores=json_table(scores / "scores.json"),
        places={word: place for word, uri in job.uris.items() if (place := relative_place(job.target, uri))},
    )


def views() -> dict[str, ModuleType]:
    """Artifact word -> the module `view` of the stage that writes it; see `anadil.page.part`."""
    return {stage.writes: brought(stage, "view") for stage in FLOW if "view" in stage.brings}


def parts_of(made: Mapping[str, Json], recipe: Json, manifests: Mapping[str, Manifest]) -> dict[str, Part]:
    """Parts of the artifacts whose JSON files are given, in the order of the flow."""
    parts = {word: view.part(made[word], recipe, manifests) for word, view in views().items() if word in made}
    return {word: part for word, part in parts.items() if part}


def _corpus(recipe: Recipe, source: str, corpus: Path) -> CorpusFacts:
    of_source = recipe.of_source(source) if source else recipe
    return CorpusFacts(
        source=source,
        manifest=artifact.finished_manifest(str(corpus), "corpus"),
        stats=json_table(corpus / "stats.json"),
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


def _samples(path: Path, most: int) -> list[Json]:
    """The first lines of a file that may be packed; none where the file is not there."""
    if not path.is_file():
        return []
    try:
        lines = [line for line in itertools.islice(bounded_lines(path), most) if isinstance(line, bytes)]
        return [table_of(parsed(line.decode(), path)) for line in lines]
    except (*DAMAGED, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); make the corpus again") from None


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
