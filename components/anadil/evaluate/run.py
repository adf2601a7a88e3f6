"""Stage evaluate (corpus, model, merged, adapter -> scores): base and candidates, measured side by side.

One model is in memory at a time. Everything is measured on the same documents, and `scores.json`
holds what the report and the gate need.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from anadil.artifacts.base_model import model_config
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.scored_text import RETAINED_KEY, read_retained
from anadil.artifacts.text_files import json_rows
from anadil.core.candidates import CANDIDATES
from anadil.core.errors import DataError, IntegrityError, PreflightError
from anadil.core.json_text import read_json, write_indented
from anadil.core.stage import ANSWERS, Stage
from anadil.core.stages import WRITERS
from anadil.evaluate import models
from anadil.evaluate.candidate import Material, measure
from anadil.evaluate.gate import apply_gate, differences_of, log_scores, scores_table
from anadil.evaluate.heldout import by_target, find_contamination, read_heldout
from anadil.evaluate.measures import Asked, prepare_measures
from anadil.evaluate.questions import encode_references, read_questions
from anadil.evaluate.tuning import without_tuning
from anadil.model.family_table import refuse_mixture
from anadil.model.tiny import base_model
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import BASE_FILES, base_files
from anadil.runtime.job import Figures, Job, value_of
from anadil.text.corpus import Document, read_corpora
from anadil.text.language import load_language
from anadil.text.metrics import SURE_DOCUMENTS, deciding_scores

log = logging.getLogger(__name__)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def run(job: Job) -> Figures:
    """Score the base and the candidates, and judge the candidates."""
    recipe, language = job.recipe, load_language(job.recipe.language)
    corpora = job.of_sources("corpus")
    targets, others = by_target(corpora, recipe.target_sources)
    heldout = read_heldout(targets, job.files, recipe.clean.text_field, language.code)
    retained = read_retained(job.side_files.get(RETAINED_KEY, ()), recipe.clean.text_field, others)
    tuning: dict[str, Any] = {}
    if tuners := _tuners(job):
        # Others were tuned by retained text alone.
        asked = (each.only_if for stage in tuners for each in stage.reads if each.kind == "corpus")
        by_corpus = any(key and value_of(recipe, key) for key in asked)
        heldout, retained, tuning = without_tuning(heldout, retained, targets if by_corpus else [])
    candidates, encoded = models.encode_with_champion(
        _candidates(job), job.inputs.get("champion"), heldout.documents
    )
    questions, references = encode_references(candidates, read_questions(job))
    measures = prepare_measures(
        Asked(
            recipe=recipe, language=language, heldout=heldout.documents, retained=retained, candidates=candidates,
            train=lambda: read_corpora(corpora.values(), "train"), side_files=job.side_files,
        )
    )  # fmt: skip
    material = Material(
        heldout=encoded, retained=models.encode_for_all(candidates, retained), questions=questions, references=references,
        measures=measures,
    )  # fmt: skip
    if len(encoded.documents) < SURE_DOCUMENTS:
        log.warning("held-out: only %d documents; differences are unsure", len(encoded.documents))
    results, known = (
        {},
        _measured_before(job, [uri for each in measures.values() for uri in each.earlier_scores()]),
    )
    for candidate in candidates:
        results[candidate.name] = measure(candidate, material, recipe, language, known)
        figures = results[candidate.name].table.items()
        job.tracker.metrics(
            {f"{candidate.name}_{name}": value for name, value in figures if isinstance(value, int | float)}
        )
    # After the candidates have written: the same pass tells which of their words training text has.
    train = read_corpora(corpora.values(), "train")
    items = read_items(job.inputs.get("tasks"))
    readers = [read for each in measures.values() if (read := each.reader())]
    contamination, seen_items = find_contamination(encoded.documents, train, language, items, readers)
    differences = differences_of(results, material, contamination, recipe.seed)
    base = results["base"].table
    tables = {name: result.table for name, result in results.items()}
    for each in measures.values():
        each.compare(tables)
    verdict = apply_gate(
        recipe.evaluate.gate, tables, differences, contamination, _table(job, "adapter", "mask_audit.json"),
        answering={each.name for each in candidates if each.answers}, of_champion=_of_champion(recipe),
    )  # fmt: skip
    log_scores(verdict, results, contamination, differences)
    tasks = _table(job, "tasks", "tasks.json")
    scores = scores_table(heldout, material, results, differences, contamination, verdict, tasks)
    scores["task_facts"] = task_facts(items, seen_items, _table(job, "tasks", "measures.json"))
    if tuning:
        scores["tuning"] = tuning
    write_indented(job.out / "scores.json", scores, allow_nan=False)
    models.write_measurements(job.out, [each.measurements for each in results.values()])
    job.tracker.run_metrics(deciding_scores(scores))
    job.records.update(
        documents=len(encoded.documents), contaminated=len(contamination.contaminated), altered=len(encoded.altered)
    )  # fmt: skip
    released = tables[verdict.released or "adapted"]  # a figure of one model is never told of another
    return {
        "base_bits_per_byte": base["bits_per_byte"],
        "bits_per_byte": released["bits_per_byte"],
        "base_fertility": base["fertility"],
        "fertility": released["fertility"],
        "gate": "passed" if verdict.passed else "failed",
        "released": verdict.released or "none",
    }


def _of_champion(recipe: Recipe) -> set[str]:
    """Return the candidates that are the champion's own: on new chats alone, all but the finetuned model."""
    keeps_model = recipe.retrain is not None and recipe.retrain.keeps_model
    return {each.name for each in CANDIDATES if each.use != ANSWERS} if keeps_model else set()


def _tuners(job: Job) -> list[Stage]:
    """Return the stages that chose a candidate by a part of the texts: they read the retained ones, too."""
    return [
        stage
        for stage in (WRITERS[each.kind] for each in CANDIDATES if each.kind in job.inputs)
        if any(file.key == RETAINED_KEY and value_of(job.recipe, file.only_if) for file in stage.side_files)
    ]


def _candidates(job: Job) -> list[models.ScoredModel]:
    if "adapter" in job.inputs:
        refuse_other_rank(job.inputs["adapter"])
    made = [
        models.open_artifact(each.name, job.inputs[each.kind])
        for each in CANDIDATES
        if each.kind in job.inputs
    ]
    path = base_model(job.recipe.base, job.base_cache)
    base = models.open_model("base", path, digest=base_files(str(path))[BASE_FILES], like=made[0])
    candidates = [base, *made]
    for candidate in candidates:
        refuse_mixture(model_config(candidate.path), f"{candidate.name} ({candidate.path})")
    return candidates


def _measured_before(job: Job, uris: Sequence[str]) -> list[models.Measurements]:
    """Return the measurements of earlier scores, the champion's among them. The log has the reason where scores are gone."""
    champion = job.recipe.retrain.champion if job.recipe.retrain else None
    uri = champion.artifacts.get("scores") if champion else None
    measurements: list[models.Measurements] = []
    # The first week's champion may be of a version that kept none.
    for each in dict.fromkeys([*([uri] if uri else []), *uris]):
        try:
            measurements += models.read_measurements(fetch(each, "scores", (models.FILE,))[0])
        except (DataError, IntegrityError, PreflightError) as error:
            log.warning("%s; its models are measured again", error)
    return measurements


def refuse_other_rank(adapter: Path) -> None:
    """Refuse an adapter whose matrices have another rank than its configuration says."""
    # The configuration scales the update by `lora_alpha / r`, so that the wrong one gives another model without a word.
    if not (adapter / CONFIG).is_file() or not (adapter / WEIGHTS).is_file():
        return
    settings = read_json(adapter / CONFIG)
    if settings.get("rank_pattern"):
        return  # of an adapter that others made, with a rank for each layer
    try:
        with safe_open(adapter / WEIGHTS, framework="numpy") as tensors:
            names = [name for name in tensors.keys() if name.endswith("lora_A.weight")]  # noqa: SIM118  no mapping
            ranks = {name: tensors.get_slice(name).get_shape()[0] for name in names}
    except SafetensorError as error:
        raise IntegrityError(
            f"{adapter / WEIGHTS}: damaged ({error}); make or fetch the adapter again"
        ) from None
    for name, rank in ranks.items():
        if rank != settings["r"]:
            raise IntegrityError(
                f"{adapter / WEIGHTS}: {name} has rank {rank}, and {CONFIG} says {settings['r']}; "
                "make or fetch the adapter again"
            )


def _table(job: Job, word: str, name: str) -> dict[str, Any]:
    """Read a table of an input; empty where the input or the file is missing, as in an adapter of another program."""
    path = job.inputs[word] / name if word in job.inputs else None
    table: dict[str, Any] = read_json(path) if path and path.is_file() else {}
    return table


def read_items(tasks: Path | None) -> list[Document]:
    """Return the questions in an artifact of tasks, with their task as source."""
    rows: Any = json_rows(tasks / "items.jsonl", "tasks/items.jsonl") if tasks else ()
    return [
        Document(id=f"{row['task']}:{number}", text=row["text"], source=row["task"], url="", lang="")
        for number, row in rows
    ]


def task_facts(
    items: Sequence[Document], seen: Collection[str], measures: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return what each task measures, how many questions it has, and how many stand in the training text."""
    questions = Counter(each.source for each in items)
    contaminated = Counter(each.source for each in items if each.id in seen)
    if contaminated:
        counts = (f"{task} {count:,} of {questions[task]:,}" for task, count in contaminated.items())
        log.warning("tasks: questions that the training text holds: %s", ", ".join(counts))
    return {
        task: {"measures": measures.get(task, ""), "questions": count, "contaminated": contaminated[task]}
        for task, count in questions.items()
    }
