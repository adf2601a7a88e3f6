"""The recipe's tasks as names that lm-evaluation-harness finds, and the files in which it finds them.

An entry of `evaluate.tasks` is a name of the harness or of ours, a language that has a list of tasks, or a place: a
`.yaml` with a task or a group, a directory of such files with their data, or a `.jsonl` of questions with choices.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from anadil.artifacts import storage
from anadil.artifacts.text_files import json_rows
from anadil.core.errors import DataError, IntegrityError
from anadil.core.json_text import TooDeepError, refuse_deep
from anadil.tasks.shipped.choices import question_of

KEY = "evaluate.tasks"
SHIPPED = Path(__file__).parent / "shipped"
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
    _refuse_elsewhere(task, folder, uri)
    settings = task.get("dataset_kwargs")
    if isinstance(settings, dict) and "data_files" in settings:
        settings["data_files"] = _each(settings["data_files"], lambda name: _beside(folder, name, uri))
    path.write_text(yaml.safe_dump(task, allow_unicode=True, sort_keys=False), encoding="utf-8")
    name = task.get("group", task.get("task"))
    return [name] if isinstance(name, str) else []


def _refuse_elsewhere(task: dict[Any, Any], folder: Path, uri: str) -> None:
    """Refuse what is read from a place that the recipe does not name: it would not decide the artifact's key."""
    includes = task.get("include") or []
    for name in [includes] if isinstance(includes, str) else includes:
        _beside(folder, name, uri)
    path = str(task.get("dataset_path", "json"))
    if path not in BUILDERS and (path[:1] in "./~" or "://" in path):
        raise DataError(
            f"{KEY}: {uri} reads dataset_path {path!r}; name a data set of the hub, or one of "
            f"{', '.join(BUILDERS)} with dataset_kwargs.data_files beside the task file"
        )


def _each(value: Any, change: Callable[[str], str]) -> Any:
    """Return `value` with every text in it changed."""
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
        "include": str(SHIPPED / "choices.yaml"),
        "task": name,
        "dataset_kwargs": {"data_files": {"test": str(path)}},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    return name
