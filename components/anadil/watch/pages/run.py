"""The list of runs, and the page of a run: flow, time and cost, curves, texts, warnings; stop and how to go on."""

import os
import re
import shlex
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from anadil.artifacts.artifact import finished_manifest
from anadil.artifacts.find import read_verified
from anadil.artifacts.uri import join
from anadil.core.errors import AnadilError, DataError, PreflightError
from anadil.core.format import human_dollars, human_figure, human_seconds, number
from anadil.core.stages import FLOW
from anadil.core.table import Table
from anadil.release.runs import COLUMNS, WORDS, Run, age
from anadil.report.charts import Line
from anadil.report.format import words_of
from anadil.runtime.flow import Step
from anadil.runtime.run_record import RECIPE_FILE, RunRecord, StepRecord, is_gone, recipe_of
from anadil.watch.data.corpora import uri_of
from anadil.watch.page import FILE_POLICY, link, page
from anadil.watch.watched import (
    KINDS,
    Plot,
    RunState,
    Watched,
    Window,
    curves_of,
    plot,
    plots_of,
    run_state,
    step_names,
    texts_of,
)

SHOWN = 100
"""Runs that are read for the list."""
EARLIER = 4
"""Earlier runs whose curves are drawn beside those of a run."""
LISTED = 40
"""Runs among which earlier ones are looked for."""
COMPARED = (
    ("Loss", "nats per token", "loss"),
    ("Held-out text", "bits per byte", "validation_bits_per_byte"),
)
FIGURES = 3
"""Figures of a step that its box shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One step in the picture of the flow."""

    name: str
    state: str
    time: str
    figures: str
    left: str = ""
    share: float | None = None
    """Part of the loop that is done, 0 to 1."""


def routes(watched: Watched) -> list[Route]:
    """`/`, `/run/ID`, to stop it, and the page that `report` has written."""
    return [
        Route("/", partial(_list, watched)),
        Route("/run/{id}", partial(_show, watched)),
        Route("/run/{id}/stop", partial(_stop, watched), methods=["POST"]),
        Route("/run/{id}/report", partial(_show_report, watched)),
    ]


def _list(watched: Watched, request: Request) -> Response:
    runs, faults = watched.places(SHOWN)
    rows = [
        (link(cells[0], f"/run/{run.id}"), *cells[1:]) for run, cells in zip(runs, runs.rows(), strict=True)
    ]
    note = f"{runs.hidden} older runs are not shown." if runs.hidden else ""
    table = Table("Runs", COLUMNS, rows, words=WORDS, note=note)
    view = {"title": "Runs", "table": table, "faults": faults, "roots": watched.roots}
    return page(request, "runs.html.j2", view)


def _show(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    state, window = run_state(watched, run.id), window_of(request)
    view = {
        "title": run.recipe or run.id, "run": run, "facts": _facts(run, state), "flow": _flow(state),
        "parts": _parts(watched, state, window), "texts": texts_of(watched, state), "lang": _language(run),
        "earlier": _earlier(watched, run, state, window), "window": window, "is_zoomed": window != Window(),
        "messages": state.messages, "can_stop": can_stop(state.record), "resume": resume_command(run, state.record),
    }  # fmt: skip
    return page(request, "run.html.j2", view)


def window_of(request: Request) -> Window:
    """Stretch of steps that an address asks for; what is no number is an open end."""
    ends: list[float | None] = []
    for name in ("from", "to"):
        ends.append(None)
        with suppress(KeyError, ValueError):
            ends[-1] = number(float(request.query_params[name]))
    return Window(first=ends[0], last=ends[1])


def _facts(run: Run, state: RunState) -> list[tuple[str, str, str]]:
    """(name, value, small print) of each fact in the head of the page."""
    hours, dollars = number(state.plan.get("hours")), number(state.plan.get("cost"))
    progress = state.progress if state.progress and state.progress.step == state.running else None
    left = progress.seconds_left if progress and state.running else None
    now = time.time() if state.record.state == "running" else state.record.updated
    cost = f"; cost {human_dollars(dollars)}" if dollars else ""
    facts = [
        ("State", run.state, f"{run.progress} steps"),
        ("Time", human_seconds(now - state.record.started), f"began {age(time.time() - state.record.started)} ago"),
        hours and ("Plan", human_seconds(hours * 3600), f"of training{cost}"),
        progress and left is not None and ("Time left", human_seconds(left), f"of {state.running}: {progress.what}"),
        run.dollars is not None and ("Cost", human_dollars(run.dollars), "so far, on demand"),
        run.bits_per_byte is not None and (
            "Bits per byte", human_figure(run.bits_per_byte), f"base: {human_figure(run.base_bits_per_byte)}; lower is better"
        ),
    ]  # fmt: skip
    return [fact for fact in facts if isinstance(fact, tuple)]


def _flow(state: RunState) -> list[tuple[str, str, list[StepView]]]:
    """(stage, its state, its steps) in order; those of sources stand together."""
    steps = step_names(state.record).items()
    grouped = groupby(steps, key=lambda pair: Step.named(pair[0]).stage.name)
    flow = []
    for stage, pairs in grouped:
        views = [_step_view(state, name, record) for name, record in pairs]
        states = {view.state for view in views}
        whole = next((each for each in ("failed", "stopped", "running") if each in states), "")
        if not whole:
            whole = "waiting" if "waiting" in states else "reused" if states == {"reused"} else "finished"
        flow.append((stage, whole, views))
    return flow


def _step_view(state: RunState, name: str, step: StepRecord) -> StepView:
    if name not in state.record.steps:
        return StepView(name=name, state="waiting", time="", figures="")
    word, seconds = str(step.status), step.seconds
    if word == "running":
        seconds = max(0.0, time.time() - state.record.updated)
        word = "running" if state.record.state == "running" else "stopped"
    elif word == "finished" and seconds + 0.5 < (number(step.figures.get("seconds")) or 0):
        word = "reused"
    progress = (
        state.progress if state.progress and state.progress.step == name and word == "running" else None
    )
    left, share = "", None
    if progress and progress.total:
        share = min(1.0, progress.done / progress.total)
        left = f"{progress.done:,} of {progress.total:,}"
    figures = [
        f"{words_of(key)} {human_figure(value) if number(value) is not None else value}"
        for key, value in step.figures.items()
        if key != "seconds"
    ]
    return StepView(
        name=name, state=word, time=human_seconds(seconds) if word != "reused" else "",
        figures=", ".join(figures[:FIGURES]), left=left, share=share,
    )  # fmt: skip


def _parts(watched: Watched, state: RunState, window: Window) -> list[tuple[str, list[Plot], int]]:
    """(stage, its charts, damaged lines) of the steps that have curves."""
    curves = {
        name: curves_of(watched, state.record, state.place, name)
        for name in state.record.stages
        if name in KINDS
    }
    parts = [(name, plots_of(name, each, window), each.num_damaged) for name, each in curves.items() if each]
    return [part for part in parts if part[1] or part[2]]


def _language(run: Run) -> str:
    """Code of the language that the run teaches, for readers that speak and hyphenate; empty where nobody knows."""
    with suppress(AnadilError):
        return str(recipe_of(run.place, run.id).get("language") or "")[:20]
    return ""


def _earlier(watched: Watched, run: Run, state: RunState, window: Window) -> list[Plot]:
    """Curves of this run and of earlier ones, on one axis; none without earlier ones of another model."""
    curves = {run.id: curves_of(watched, state.record, state.place, "pretrain")}
    models = {run.artifacts.get("model")}
    for other in watched.places(LISTED)[0]:
        uri = other.artifacts.get("model")
        if other.started >= run.started or not uri or uri in models or len(curves) > EARLIER:
            continue
        models.add(uri)
        curves[other.id] = watched.files.read(join(uri, "training.jsonl"))
    # Alone it would repeat the charts above.
    if len(curves) < 2:
        return []
    plots = []
    for title, unit, name in COMPARED:
        drawn = {key: window.cut(each.points(name)) for key, each in curves.items() if each}
        labelled = [Line("this run" if key == run.id else key, tuple(each)) for key, each in drawn.items()]
        plots += plot(f"{title}, this run and earlier ones", unit, labelled)
    return plots


def can_stop(record: RunRecord) -> bool:
    """True for a run whose process is one of this machine."""
    return record.state == "running" and bool(_process(record))


def _process(record: RunRecord) -> int:
    """Id of the process of this machine that drives a run; 0 where there is none."""
    host, _, rest = record.process.partition(" ")
    pid = rest.partition(" ")[0]
    return int(pid) if host == os.uname().nodename and pid.isdigit() and not is_gone(record.process) else 0


def resume_command(run: Run, record: RunRecord) -> str:
    """The command that goes on with a run where it has stopped; empty for one on a cluster."""
    # Pods are started again by what has launched them.
    if "://" in run.place or not record.process:
        return ""
    until = record.stages[-1].partition("-")[0] if record.stages else FLOW[-1].name
    command = ["anadil", "run", join(run.place, "runs", run.id, RECIPE_FILE), "--work", run.place]
    command += [] if until == FLOW[-1].name else ["--until", until]
    return shlex.join(command)


def _stop(watched: Watched, request: Request) -> Response:
    """Ask a run to save and end, as Ctrl-C does."""
    run = watched.run(request.path_params["id"])
    record = run_state(watched, run.id).record
    # The page may be minutes old.
    if record.state != "running":
        raise DataError(f"{run.id}: has ended already ({record.state})")
    pid = _process(record)
    if not pid:
        raise PreflightError(
            f"{run.id}: runs on another machine; stop it there, or a job with `anadil stop JOB`"
        )
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        raise PreflightError(
            f"{run.id}: process {pid} cannot be stopped ({error.strerror}); stop it as its user"
        ) from None
    return RedirectResponse(f"/run/{run.id}", 303)


def _show_report(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    uri = uri_of(run, "report")
    text = read_verified(uri, finished_manifest(uri, "report"), "report.html").decode(errors="replace")
    back = f'<header style="padding-top:14px"><a href="/run/{escape(run.id)}">\N{LEFTWARDS ARROW} {escape(run.id)}</a></header>'
    # A function, since the text of a replacement has escapes of its own.
    text = re.sub(r"<body[^>]*>", lambda match: match[0] + back, text, count=1)
    # Its style is in it, and no script of it runs.
    return HTMLResponse(text.encode(errors="replace"), headers={"Content-Security-Policy": FILE_POLICY})
