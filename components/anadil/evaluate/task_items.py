"""Questions of the tasks, and how many stand in the training text."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from anadil.artifacts.text_files import json_rows
from anadil.text.corpus import Document

log = logging.getLogger(__name__)


def read_items(tasks: Path | None) -> list[Document]:
    """Return the questions in an artifact of tasks, with their task as source."""
    file = tasks / "items.jsonl" if tasks else None
    # Tasks of an older version wrote none.
    rows: Any = json_rows(file, "tasks/items.jsonl") if file and file.is_file() else ()
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
