"""Stage tasks (model, merged, adapter -> tasks): base and candidates in tasks of lm-evaluation-harness.

All candidates are asked in the same words, without a chat template, so that figures can be compared.
"""

import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable

from anadil.artifacts.base_model import model_config
from anadil.core.candidates import CANDIDATES
from anadil.core.json_text import write_indented
from anadil.core.stages import STAGES
from anadil.estimate.fit import FITS
from anadil.estimate.model_shape import shape_from
from anadil.estimate.stage_memory import harness_parts
from anadil.model.load import free_memory, load_placed, load_tokenizer, window_bos
from anadil.model.tiny import base_model
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Figures, Job, is_place
from anadil.tasks import harness
from anadil.tasks.native import KEY, benchmark_of, named_tasks, native_tasks

log = logging.getLogger(__name__)

ITEMS = "items.jsonl"


def run(job: Job) -> Figures:
    """Fill `job.out` with `tasks.json`, and with the harness's own results and samples of each candidate."""
    settings = job.recipe.evaluate
    tables: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="anadil-") as scratch:
        folder = Path(scratch)
        # Before a model is loaded: all data is fetched here.
        manager, tasks = load_tasks(job.recipe, job.side_files.get(KEY, ()), folder)
        names = list(tasks)
        write_items(tasks, job.out / ITEMS)
        measures = {name: each.measures for name in names if (each := benchmark_of(name))}
        write_indented(job.out / "measures.json", measures)
        if not tasks:
            log.warning("evaluate.tasks: no task in %s, nothing is measured", job.recipe.language)
        made = {
            each.name: job.inputs[each.kind] / each.folder for each in CANDIDATES if each.kind in job.inputs
        }
        candidates = {"base": base_model(job.recipe.base, job.base_cache), **made} if tasks else {}
        # The tokenizer that is shipped sets BOS before a text also where the base's sets none.
        begins = any(window_bos(load_tokenizer(path)) is not None for path in candidates.values())
        for candidate, path in candidates.items():
            model = _open(path, job.recipe.context, begins=begins)
            results = harness.evaluate_tasks(
                model, manager, names, shots=settings.task_shots, seed=job.recipe.seed
            )
            del model
            free_memory()
            _store(job, candidate, results)
            for task, figures in harness.deciding_figures(results).items():
                tables.setdefault(task, {})[candidate] = figures
                log.info("%s, %s: %s %.4f", task, candidate, figures["metric"], figures["value"])
                job.tracker.metrics({f"{candidate}_{task}": figures["value"]})
    write_indented(job.out / "tasks.json", tables, allow_nan=False)
    return {"tasks": len(tables), "candidates": len(candidates)}


def load_tasks(
    recipe: Recipe, uris: tuple[str, ...], folder: Path
) -> tuple[TaskManager, dict[str, list[ConfigurableTask]]]:
    """Fetch the data of the tasks that the recipe names, and of its task files, which are put into `folder`."""
    kind = next(each for each in STAGES["tasks"].side_files if each.key == KEY)
    named = [name for name in named_tasks(recipe) if not is_place(name, kind)]
    names = list(dict.fromkeys([*named, *harness.place_task_files(uris, folder)]))
    return harness.find_tasks(
        names, folder, {each.task for each in native_tasks(recipe.language)} - {*recipe.evaluate.listed_tasks}
    )


def write_items(tasks: Mapping[str, Sequence[ConfigurableTask]], file: Path) -> Counter[str]:
    """Write the text of each question as JSON lines. Return the number of questions by name."""
    counts: Counter[str] = Counter()
    with file.open("w", encoding="utf-8") as out:
        for name, members in tasks.items():
            for text in (text for task in members for text in harness.item_texts(task)):
                counts[name] += 1
                out.write(json.dumps({"task": name, "text": text}, ensure_ascii=False) + "\n")
    return counts


def _open(path: Path, context: int, *, begins: bool) -> harness.Harnessed:
    def parts(devices: int) -> dict[str, float]:
        shape = shape_from(model_config(path), path.name)
        return harness_parts(shape, devices, rows=harness.BATCH_ROWS["cuda"], context=context)

    loaded: Any = load_placed(path, path.name, parts, FITS)
    longest = getattr(loaded.config, "max_position_embeddings", None) or context
    return harness.Harnessed(loaded.eval(), load_tokenizer(path), min(context, longest), begins=begins)


def _store(job: Job, candidate: str, results: dict[str, Any]) -> None:
    """Write all results of the harness; its times and its machine are no part of the artifact's content."""
    (job.out / "harness").mkdir(exist_ok=True)
    whole = {key: value for key, value in results.items() if key != "samples"}
    names = f"harness/{candidate}.json", f"harness/{candidate}.samples.jsonl.zst"
    (job.out / names[0]).write_text(_dumped(whole, indent=1) + "\n", encoding="utf-8")
    with (job.out / names[1]).open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        for task, samples in results["samples"].items():
            for sample in samples:
                packed.write((_dumped({"task": task, **sample}) + os.linesep).encode())
    job.varying.extend(names)


def _dumped(value: dict[str, Any], indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, default=handle_non_serializable)
