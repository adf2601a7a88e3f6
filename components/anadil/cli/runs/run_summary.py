"""The end of `anadil run`, for people: figures before and after, what may be released, where to look."""

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.candidates import ANSWERS, BY_NAME, CANDIDATES
from anadil.core.format import DASH, human_figure, human_percent, number, one_line
from anadil.core.log import masked
from anadil.recipe.sections import Recipe
from anadil.recipe.tracking_address import TENSORBOARD, WANDB, tensorboard_folder, tracker
from anadil.release.text_table import text_table
from anadil.report.read import Json, field, table_of
from anadil.report.talk_view import sample_of
from anadil.report.verdict import candidates_of, gate_verdict, released_name, use_of
from anadil.runtime.trackers import STATE
from anadil.runtime.tracking_spool import tracker_address

WIDTH = 100
PORT = 5000
"""MLflow's own."""
FIGURES: tuple[tuple[str, str, Callable[[float | int | None], str]], ...] = (
    ("bits_per_byte", "bits per byte", human_figure),
    ("fertility", "tokens per word", human_figure),
    ("questions.bits_per_byte", "unseen questions: answer, bits per byte", human_figure),
    ("questions.exact", "unseen questions: answered word for word", human_percent),
    ("seen_questions.exact", "trained questions: answered word for word", human_percent),
)
"""Path in a candidate's scores, label of the row, format of its cells."""


def summary_lines(
    recipe: Recipe, uris: Mapping[str, str], default_tracking: str, spool: Path | None = None
) -> Iterator[str]:
    """The last lines of a run with some artifacts, by kind.

    Args:
        recipe: Recipe of the run.
        uris: Kind of artifact -> URI.
        default_tracking: URI of MLflow where neither the recipe nor the environment names one.
        spool: Folder in which the sender notes the runs that it has made.
    """
    if "scores" in uris:
        place = join(uris["scores"], "scores.json")
        scores = table_of(json.loads(storage.store(place).read(place)))
        yield from figure_lines(scores)
        yield from textwrap.wrap(gate_verdict(scores), WIDTH)
        yield from _chat_lines(scores, uris)
    if "report" in uris:
        yield f"report: {uris['report']}/report.html"
    tracking = tracker_address(recipe, default=default_tracking)
    if tracking and tracker(tracking) == WANDB:
        yield from _wandb_lines(spool)
    elif tracking and tracker(tracking) == TENSORBOARD:
        yield f"tracking: tensorboard --logdir {shlex.quote(tensorboard_folder(tracking))}"
    elif tracking:
        yield from _tracking_lines(tracking, _page(spool))


def _chat_lines(scores: Json, uris: Mapping[str, str]) -> Iterator[str]:
    """A sample of the released model, and the command that asks each model; the last line is the released one's."""
    released = released_name(scores)
    named = [each.name for each in CANDIDATES if each.name in candidates_of(scores) and each.kind in uris]
    for name in sorted(named, key=lambda name: name == released):
        answers = use_of(scores, name) == ANSWERS
        if name == released:
            yield from _sample_lines(candidates_of(scores).get(name, {}), answers=answers)
        passed = field(scores, f"gate.verdicts.{BY_NAME[name].kind}.passed") is True
        head = "try it" if name == released else f"the {name} model{'' if passed else ', not released'}"
        # An adapted model continues texts, and most bases know no chats.
        yield f"{head}: anadil chat {shlex.quote(uris[BY_NAME[name].kind])}{'' if answers else ' --complete'}"


def _sample_lines(candidate: Json, *, answers: bool) -> Iterator[str]:
    if sample := sample_of(candidate, answers=answers):
        first, second = ("question", "answer") if answers else ("beginning", "continued")
        width = WIDTH - len(first) - 2
        yield f"{first}: {one_line(str(sample.get('prompt')), width)}"
        yield f"{second}: {one_line(str(sample.get('text')), width)}"


def _wandb_lines(spool: Path | None) -> Iterator[str]:
    """The run's page in W&B; of a run that was tracked offline, the command that sends it."""
    try:
        state = table_of(json.loads((spool / STATE).read_text(encoding="utf-8")) if spool else {})
    except (OSError, ValueError):
        return
    if state.get("page"):
        yield f"tracking: {state['page']}"
    elif state.get("files"):
        yield f"tracking: wandb sync {shlex.quote(str(state['files']))}"


def _tracking_lines(uri: str, page: str) -> Iterator[str]:
    """Where this run's page is; for a database of this machine, the command that shows it."""
    if uri.startswith("arn:"):
        yield f"tracking: {uri}, which opens from the console of SageMaker{f', at {page}' if page else ''}"
    elif uri.startswith(("http://", "https://")):
        yield f"tracking: {masked(uri).rstrip('/')}{page}"
    else:
        yield f"tracking: {_mlflow()} ui --port {PORT} --backend-store-uri {shlex.quote(masked(uri))}"
        if page:
            yield f"  and then: http://127.0.0.1:{PORT}{page}"


def _page(spool: Path | None) -> str:
    """Path of the run's page; empty where the sender has made none."""
    try:
        sent = json.loads((spool / "sent.json").read_text(encoding="utf-8")) if spool else {}
    except (OSError, ValueError):
        return ""
    if not sent.get("parent") or not sent.get("experiment"):
        return ""
    # Without the last part the pages of MLflow 3 open as those of chat applications.
    return f"/#/experiments/{sent['experiment']}/runs/{sent['parent']}?workflowType=machine_learning"


def _mlflow() -> str:
    """The command as a shell finds it: that of an environment which is not active by its path."""
    beside = Path(sys.executable).with_name("mlflow")
    return (
        "mlflow" if shutil.which("mlflow") == str(beside) or not beside.exists() else shlex.quote(str(beside))
    )


def figure_lines(scores: Json) -> Iterator[str]:
    """A row for each figure that any candidate has, a column for each candidate."""
    candidates = candidates_of(scores)
    rows = []
    for path, label, say in FIGURES:
        values = [number(field(item, path)) for item in candidates.values()]
        if any(value is not None for value in values):
            rows.append((label, *(DASH if value is None else say(value) for value in values)))
    yield from text_table(("", *candidates), rows, range(1, len(candidates) + 1)) if rows else ()
