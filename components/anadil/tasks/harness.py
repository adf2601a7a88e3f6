"""Access to lm-evaluation-harness: the tasks that it knows, and the results of a model in them."""

import difflib
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from datasets.exceptions import DatasetsError
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from anadil.artifacts import storage
from anadil.artifacts.text_files import json_rows
from anadil.core.errors import DataError, IntegrityError, PreflightError, RecipeError
from anadil.core.json_text import TooDeepError, refuse_deep
from anadil.model.load import document_ids, window_bos
from anadil.tasks.native import FOLDER, KEY
from anadil.tasks.shipped.choices import question_of

log = logging.getLogger(__name__)

BATCH_ROWS = {"cpu": 8, "cuda": 16}
"""Rows of a batch by device. The harness holds all logits of one: 16 rows of 1,000 tokens and 128k ids are 8 GB."""
BOOTSTRAP_DRAWS = 1_000
"""For the error of figures that are no mean, such as chrF."""
DECIDING = ("acc_bytes", "acc_norm", "acc", "exact_match", "f1", "chrf", "bleu")
"""Figures of which the first that a task has stands in the scores: by bytes does not favour a vocabulary."""


def find_tasks(
    names: Sequence[str], folder: Path, optional: Container[str] = ()
) -> tuple[TaskManager, dict[str, list[ConfigurableTask]]]:
    """Load tasks and fetch their data. Return the manager, and the tasks of each name that is in no named group.

    Args:
        names: Tasks, groups and tags.
        folder: Where the recipe's own task files lie.
        optional: Names that are skipped, and said, if their data cannot be read.
    """
    manager = task_manager(names, folder)
    group_of: dict[str, str] = {}
    by_name: dict[str, list[ConfigurableTask]] = {}
    for name in names:
        try:
            with _data_faults(name):
                loaded = manager.load([name])
        except DataError as error:
            if name not in optional:
                raise
            log.warning("skipped: %s", error)
            continue
        by_name[name] = list(loaded["tasks"].values())
        members = {*loaded["tasks"], *loaded["groups"]} - {name}
        if twice := members & group_of.keys():
            task = min(twice)
            raise RecipeError(f"{KEY}: {group_of[task]} and {name} both hold {task}; take one of them out")
        group_of |= dict.fromkeys(members, name)
    return manager, {name: tasks for name, tasks in by_name.items() if name not in group_of}


def item_texts(task: ConfigurableTask) -> Iterator[str]:
    """Yield the text of each question of a task, with its choices."""
    for doc in task.eval_docs:
        asked = task.doc_to_text(doc)
        choices = (
            task.doc_to_choice(doc) if task.OUTPUT_TYPE == "multiple_choice" else [task.doc_to_target(doc)]
        )
        yield "\n".join(str(each) for each in (asked, *choices) if each and not isinstance(each, int))


def task_manager(names: Sequence[str], folder: Path) -> TaskManager:
    """Create the manager of these tasks; fetch no data."""
    # Reading the harness's own 14,000 takes a quarter of a minute.
    manager = TaskManager(include_path=[str(FOLDER), str(folder)], include_defaults=False)
    if not all(_is_complete(manager, name) for name in names):
        manager = TaskManager(include_path=[str(FOLDER), str(folder)])
    if unknown := [name for name in names if name not in manager.task_index]:
        near = difflib.get_close_matches(unknown[0], manager.all_tasks, n=3, cutoff=0.5)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise RecipeError(
            f"{KEY}: lm-evaluation-harness has no task {', '.join(map(repr, unknown))}{hint}; `lm-eval ls tasks` lists them"
        )
    return manager


def _is_complete(manager: TaskManager, name: str) -> bool:
    entry = manager.task_index.get(name)
    members = (entry.cfg or {}).get("task") if entry else None
    if not isinstance(members, list):
        return entry is not None
    return all(isinstance(each, str) and _is_complete(manager, each) for each in members)


@contextmanager
def _data_faults(name: str) -> Iterator[None]:
    """Raise errors of a task's data with its name and the remedy."""
    try:
        yield
    except (ConnectionError, TimeoutError) as error:
        raise PreflightError(
            f"{KEY}: the data of {name} is not in the cache and cannot be fetched ({error}); fill the cache where there "
            "is network with `anadil tasks fetch RECIPE`, and set HF_HOME to it, or take the task out"
        ) from None
    except ImportError as error:
        raise PreflightError(
            f"{KEY}: {name} needs a package that is not here ({error}): install it, or take the task out"
        ) from None
    except (DatasetsError, OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise DataError(
            f"{KEY}: the data of {name} cannot be read ({type(error).__name__}: {error})"
        ) from error


class Harnessed(HFLM):  # type: ignore[misc]  # the harness has no types
    """A model for the harness that reads before a text what training set there, whatever its tokenizer sets.

    Tokenizers that add nothing by themselves would else be asked other questions than those that do. The harness cuts
    long requests from the left, and BOS with them; here they begin as training's windows do.
    """

    def __init__(
        self, model: Any, tokenizer: PreTrainedTokenizerFast, context: int, *, begins: bool = False
    ) -> None:
        before, _ = document_ids(tokenizer, str(model.name_or_path))
        self._bos = before if begins else window_bos(tokenizer)
        text: Any = tokenizer.convert_ids_to_tokens(before)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{text} $A", special_tokens=[(text, before)]
        )
        super().__init__(
            pretrained=model, tokenizer=tokenizer, batch_size=BATCH_ROWS.get(model.device.type, BATCH_ROWS["cpu"]),
            max_length=context, add_bos_token=True, prefix_token_id=before, softmax_dtype=torch.float32,
        )  # fmt: skip

    def _loglikelihood_tokens(self, requests: Any, *args: Any, **options: Any) -> Any:
        fitted = []
        for texts, asked, answer in requests:
            room = self.max_length + 1 - len(answer)
            if self._bos is not None and len(asked) > room:
                # The last ids that there is room for, behind BOS.
                asked = [self._bos, *asked[len(asked) - room + 1 :]]  # noqa: PLW2901
            fitted.append((texts, asked, answer))
        return super()._loglikelihood_tokens(fitted, *args, **options)

    def tok_batch_encode(self, *args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and mask of texts to go on with, padded and cut on the left."""
        ids, mask = super().tok_batch_encode(*args, **options)
        if self._bos is not None:
            ids[mask[:, 0] == 1, 0] = self._bos
        return ids, mask

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """Score whole texts; the harness sets BOS before them itself."""
        self.add_bos_token: bool = False
        try:
            return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)
        finally:
            self.add_bos_token = True

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """Score answers, without bars: our log has no place for them."""
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """Write answers."""
        return super().generate_until(requests, disable_tqdm=disable_tqdm)


def evaluate_tasks(
    model: Harnessed, manager: TaskManager, names: Sequence[str], *, shots: int | None, seed: int
) -> dict[str, Any]:
    """Return all results of the harness, with every sample."""
    # The harness forks after tokenizing, which the library warns of while its threads are on.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    results: dict[str, Any] = simple_evaluate(
        model=model, tasks=list(names), task_manager=manager, num_fewshot=shots, bootstrap_iters=BOOTSTRAP_DRAWS,
        random_seed=seed, numpy_random_seed=seed, torch_random_seed=seed, fewshot_random_seed=seed,
    )  # fmt: skip
    return results


def deciding_figures(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return of each task or group the `metric`, `value`, `stderr` and `chance` that decide; the last two may be null."""
    chances = {name: _chance(samples) for name, samples in results["samples"].items()}
    sizes = {name: len(samples) for name, samples in results["samples"].items()}
    table = {}
    for name, figures in {**results["results"], **results.get("groups", {})}.items():
        values = {key.split(",")[0]: (key, value) for key, value in figures.items() if "," in key}
        metric = next(
            (each for each in (*DECIDING, *values) if each in values and _is_number(values[each][1])), None
        )
        if metric is None:
            continue
        key, value = values[metric]
        error = figures.get(key.replace(",", "_stderr,", 1))
        members = results["group_subtasks"].get(name) or [name]
        table[name] = {
            "metric": metric,
            "value": float(value),
            "stderr": float(error) if _is_number(error) else None,
            "chance": _mean_chance(members, chances, sizes) if metric.startswith("acc") else None,
        }
    return table


def _chance(samples: Sequence[dict[str, Any]]) -> float | None:
    counts = [len(sample["arguments"]) for sample in samples]
    return sum(1 / count for count in counts) / len(counts) if counts and min(counts) > 1 else None


def _mean_chance(
    members: Sequence[str], chances: dict[str, float | None], sizes: dict[str, int]
) -> float | None:
    pairs = [(chances.get(each), sizes.get(each, 0)) for each in members]
    if not pairs or any(chance is None for chance, _ in pairs):
        return None
    return sum((chance or 0.0) * size for chance, size in pairs) / sum(size for _, size in pairs)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


BUILDERS = ("json", "csv", "parquet", "text")
"""Kinds of local data that `datasets` reads without a script."""


def place_task_files(uris: Sequence[str], folder: Path) -> list[str]:
    """Copy the recipe's task files and their data where the harness looks; return the names of their tasks and groups.

    A `.jsonl` beside a `.yaml` is data of its task, else a task of its own.
    """
    by_folder: dict[str, list[str]] = defaultdict(list)
    for uri in uris:
        by_folder[uri.rpartition("/")[0]].append(uri)
    names: list[str] = []
    for number, listed in enumerate(by_folder.values()):
        target = folder / str(number)
        target.mkdir(parents=True)
        for uri in listed:
            with storage.local_copy(uri) as path:
                shutil.copyfile(path, target / uri.rpartition("/")[2])
        task_files = [uri for uri in listed if uri.endswith(".yaml")]
        names += [name for uri in task_files for name in _task_of(target, uri)]
        if not task_files:
            names += [_choices_task(target, uri) for uri in listed]
    return names


def _task_of(folder: Path, uri: str) -> list[str]:
    """Rewrite one task file for this machine; return the name of its task or group, none if others include it."""
    path = folder / uri.rpartition("/")[2]
    try:
        task = yaml.safe_load(path.read_text(encoding="utf-8"))
        refuse_deep(task)
    except yaml.constructor.ConstructorError as error:
        raise IntegrityError(
            f"{KEY}: {uri} asks to run code ({error.problem}); task files of a recipe hold data only"
        ) from None
    except RecursionError:
        raise DataError(f"{KEY}: {uri}: {TooDeepError()}; correct it") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError of `2024-02-30`, which is no day
        raise DataError(f"{KEY}: {uri} is not YAML ({error}); correct it") from None
    if not isinstance(task, dict):
        raise DataError(f"{KEY}: {uri} holds no task; a task file has the key `task` or `group`")
    for key in ("class", "unsafe_code"):
        if key in task:
            raise IntegrityError(
                f"{KEY}: {uri} asks to run code ({key}); task files of a recipe hold data only"
            )
    # Data at a place that the recipe does not name would not decide the artifact's key.
    includes = task.get("include") or []
    for name in [includes] if isinstance(includes, str) else includes:
        _beside(folder, name, uri)
    data = str(task.get("dataset_path", "json"))
    if data not in BUILDERS and (data[:1] in "./~" or "://" in data):
        raise DataError(
            f"{KEY}: {uri} reads dataset_path {data!r}; name a data set of the hub, or one of "
            f"{', '.join(BUILDERS)} with dataset_kwargs.data_files beside the task file"
        )
    settings = task.get("dataset_kwargs")
    if isinstance(settings, dict) and "data_files" in settings:
        settings["data_files"] = _each(settings["data_files"], lambda name: _beside(folder, name, uri))
    path.write_text(yaml.safe_dump(task, allow_unicode=True, sort_keys=False), encoding="utf-8")
    name = task.get("group", task.get("task"))
    return [name] if isinstance(name, str) else []


def _each(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _each(one, change) for key, one in value.items()}
    return [_each(one, change) for one in value] if isinstance(value, list) else change(str(value))


def _beside(folder: Path, name: str, uri: str) -> str:
    if "/" in name or not (folder / name).is_file():
        raise DataError(
            f"{KEY}: {uri} reads {name!r}, which is not beside it; put both into one directory and name that in {KEY}"
        )
    return str(folder / name)


def _choices_task(folder: Path, uri: str) -> str:
    """Write the task of a file of questions with choices; its name is the file's."""
    path = folder / uri.rpartition("/")[2]
    name = path.name.split(".")[0]
    if not any(question_of(row) for _, row in json_rows(path, uri) if isinstance(row, dict)):
        raise DataError(
            f"{KEY}: {uri} has no question with choices: a row is {{question, choices, answer}}, or a prompt that lists "
            "choices (`1) ...`, a line each) with one of them as response; name other chats in evaluate.questions"
        )
    task = {
        "include": str(FOLDER / "choices.yaml"),
        "task": name,
        "dataset_kwargs": {"data_files": {"test": str(path)}},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    return name
