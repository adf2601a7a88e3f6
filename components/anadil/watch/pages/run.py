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

from markdown_it import MarkdownIt
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from anadil.artifacts.artifact import finished_manifest
from anadil.artifacts.find import read_verified
from anadil.artifacts.uri import join
from anadil.core.errors import BY_EXIT_CODE, AnadilError, DataError, PreflightError
from anadil.core.format import DASH, human_dollars, human_figure, human_seconds, number
from anadil.core.stages import FLOW, forms_of
from anadil.core.table import Table
from anadil.page.charts import Line
from anadil.page.format import words_of
from anadil.release.runs import COLUMNS, WORDS, Run
from anadil.runtime import run_record
from anadil.runtime.flow import Step
from anadil.watch.data.corpora import uri_of
from anadil.watch.data.run_notes import RunNote, notes_in, notes_of, set_note
from anadil.watch.page import FILE_POLICY, form_of, link, page
from anadil.watch.watched import (
    KINDS,
    Plot,
    RunState,
    Watched,
    Window,
    clock,
    curves_of,
    half_life,
    plot,
    plots_of,
    run_state,
    step_names,
    texts_of,
)

SHOWN, FILTERED = 100, 2_000
"""Runs that are read for the list, and for one under a filter."""
CARD = re.compile(r'href="([^"#?:/][^"#?:]*\.md)"')
"""Link of a report to a card, by a path from its own place."""
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
    """`/`, `/run/ID`, to stop and to name it, and the page and the cards that `report` has written."""
    return [
        Route("/", partial(_list, watched)),
        Route("/run/{id}", partial(_show, watched)),
        Route("/run/{id}/stop", partial(_ask_to_stop, watched), methods=["GET"]),
        Route("/run/{id}/stop", partial(_stop, watched), methods=["POST"]),
        Route("/run/{id}/note", partial(_note, watched), methods=["POST"]),
        Route("/run/{id}/card/{word}/{name:path}", partial(_show_card, watched)),
        Route("/run/{id}/report", partial(_show_report, watched)),
    ]


def _list(watched: Watched, request: Request) -> Response:
    query = request.query_params.get("filter", "")[:200]
    # A run under a filter may be long ago.
    runs, faults = watched.places(FILTERED if query else SHOWN)
    rows = []
    for run, cells, note in zip(runs, runs.rows(), notes_of(runs), strict=True):
        named = note.words
        known = " ".join((*cells, named)).casefold()
        if all(word in known for word in query.casefold().split()):
            rows.append((link(cells[0], f"/run/{run.id}"), named or DASH, *cells[1:]))
    hidden = f"{runs.hidden} older runs are not shown." if runs.hidden else ""
    table = Table(
        "Runs", (COLUMNS[0], "name", *COLUMNS[1:]), rows, words=(1, *(place + 1 for place in WORDS)), note=hidden
    )  # fmt: skip
    view = {
        "title": "Runs", "table": table, "faults": faults, "roots": watched.roots, "filter": query, "num": len(runs),
    }  # fmt: skip
    return page(request, "runs.html.j2", view)


def _show(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    state, window = run_state(watched, run.id), window_of(request)
    earlier, other = _earlier(watched, run, state, window)
    note = notes_in(run.place).get(run.id, RunNote())
    view = {
        "title": note.name or run.recipe or run.id, "run": run, "facts": _facts(watched, run, state), "flow": _flow(state),
        "parts": _parts(watched, state, window), "texts": texts_of(watched, state), "lang": _language(run),
        "earlier": earlier, "other": other, "window": window, "is_zoomed": window != Window(),
        "messages": state.messages, "can_stop": can_stop(state.record) and run.id not in watched.stopping,
        "resume": resume_command(run, state.record), "remedy": remedy(state.record), "note": note,
    }  # fmt: skip
    return page(request, "run.html.j2", view)


def window_of(request: Request) -> Window:
    """Stretch of steps that an address asks for; what is no number is an open end."""
    ends: list[float | None] = []
    for name in ("from", "to"):
        ends.append(None)
        with suppress(KeyError, ValueError):
            ends[-1] = number(float(request.query_params[name]))
    return Window(first=ends[0], last=ends[1], is_log=bool(request.query_params.get("log")))


def _facts(watched: Watched, run: Run, state: RunState) -> list[tuple[str, str, str]]:
    """(name, value, small print) of each fact in the head of the page."""
    hours, dollars = number(state.plan.get("hours")), number(state.plan.get("cost"))
    progress = state.progress if state.progress and state.progress.step == state.running else None
    left = progress.seconds_left if progress and state.running else None
    is_running, began = state.record.state == "running", clock(state.record.started)
    asked = watched.stopping.get(run.id) if is_running else None
    cost = f"; cost {human_dollars(dollars)}" if dollars else ""
    until = "until now" if is_running else f"to {clock(state.ended)}"
    facts = [
        ("State", "stopping", f"asked at {clock(asked)}, ends once {state.running or 'its step'} has saved") if asked
        else ("State", run.state, f"{run.progress} steps"),
        ("Time", human_seconds(state.ended - state.record.started), f"{began} {until}, of its steps {human_seconds(run.seconds)}"),
        is_running and not asked and _end(watched, run, state),
        hours and ("Plan", human_seconds(hours * 3600), f"of training{cost}"),
        progress and left is not None and ("Time left", human_seconds(left), f"of {progress.what}, in {state.running}"),
        run.dollars is not None and ("Cost", human_dollars(run.dollars), "so far, on demand"),
        run.bits_per_byte is not None and (
            "Bits per byte", human_figure(run.bits_per_byte), f"base: {human_figure(run.base_bits_per_byte)}; lower is better"
        ),
    ]  # fmt: skip
    return [fact for fact in facts if isinstance(fact, tuple)]


def _end(watched: Watched, run: Run, state: RunState) -> tuple[str, str, str]:
    """When the whole run will have ended: by the latest finished run of its recipe, by its plan, by the loop at work."""
    finished = (each for each in watched.places(LISTED)[0] if each.state == "finished" and each.id != run.id)
    model = next((each for each in finished if each.recipe == run.recipe and each.place == run.place), None)
    steps = run_record.read_record(run_record.record_uri(model.place, model.id)).steps if model else {}
    # A step that was reused there took no time there.
    known = {
        name: max(step.seconds, number(step.figures.get("seconds")) or 0) for name, step in steps.items()
    }
    if hours := number(state.plan.get("hours")):
        known.setdefault("pretrain", hours * 3600)
    left, unknown, progress = 0.0, list[str](), state.progress
    for name, step in step_names(state.record).items():
        if name in state.record.steps and step.status == "finished":
            continue
        rest = known.get(name)
        if name == state.running:
            rest = rest and max(0.0, rest - (state.ended - state.record.updated))
            loop = progress.seconds_left if progress and progress.step == name else None
            rest = rest if loop is None else max(rest or 0.0, loop)
        left += rest or 0.0
        unknown += [name] if rest is None else []
    small = f"by the run {model.id}" if model else "by the plan"
    if unknown:
        small += f", and no run tells of {', '.join(unknown)}"
    return (
        "End",
        f"{'after' if unknown else 'about'} {clock(state.ended + left)}",
        f"in {human_seconds(left)}, {small}",
    )


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


def _step_view(state: RunState, name: str, step: run_record.StepRecord) -> StepView:
    if name not in state.record.steps:
        return StepView(name=name, state="waiting", time="", figures="")
    word, seconds = str(step.status), step.seconds
    if word == "running":
        seconds = max(0.0, state.ended - state.record.updated)
        word = "running" if state.record.state == "running" else "stopped"
    elif word == "finished" and seconds + 0.5 < (number(step.figures.get("seconds")) or 0):
        word = "reused"
    progress = (
        state.progress if state.progress and state.progress.step == name and word == "running" else None
    )
    left, share = "", None
    if progress and progress.total:
        share = min(1.0, progress.done / progress.total)
        left = progress.words
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
        return str(run_record.recipe_of(run.place, run.id).get("language") or "")[:20]
    return ""


def _earlier(watched: Watched, run: Run, state: RunState, window: Window) -> tuple[list[Plot], int]:
    """Curves of this run and of comparable earlier runs, and the number of the others.

    Bits per byte of other held-out text, and losses of another vocabulary, are no more and no less.
    """
    curves = {"this run": curves_of(watched, state.record, state.place, "pretrain")}
    models, same_words, num_others = {run.artifacts.get("model")}, list(curves), 0
    for other in watched.places(LISTED)[0]:
        uri = other.artifacts.get("model")
        if other.started >= run.started or not uri or uri in models or len(curves) > EARLIER:
            continue
        models.add(uri)
        if _made(other, "corpus") != _made(run, "corpus"):
            num_others += 1
            continue
        curves[other.id] = watched.files.read(join(uri, "training.jsonl"))
        same_words += [other.id] if _made(other, "tokenizer") == _made(run, "tokenizer") else []
    # Alone it would repeat the charts above.
    if len(curves) < 2:
        return [], num_others
    plots = []
    for title, unit, name in COMPARED:
        drawn = {key: each for key, each in curves.items() if each and (name != "loss" or key in same_words)}
        # Steps of other batches hold other amounts of text.
        is_by_tokens = all(each.points("tokens") for each in drawn.values())
        labelled = []
        for key, each in drawn.items():
            points, tokens = window.cut(each.points(name)), dict(each.points("tokens"))
            points = tuple((tokens[x], y) for x, y in points if x in tokens) if is_by_tokens else points
            labelled.append(Line(key, points, half_life=half_life(len(points)) if name == "loss" else 0.0))
        x_label = "tokens" if is_by_tokens else "step"
        if sum(bool(line.points) for line in labelled) > 1:
            plots += plot(
                f"{title}, this run and earlier ones", unit, labelled, is_log=window.is_log, x_label=x_label
            )
    return plots, num_others


def _made(run: Run, kind: str) -> dict[str, str]:
    """Artifacts of a kind in all its forms, by their words."""
    return {word: uri for word, uri in run.artifacts.items() if word.partition(".")[0] in forms_of(kind)}


def can_stop(record: run_record.RunRecord) -> bool:
    """True for a run whose process is one of this machine."""
    return record.state == "running" and bool(_process(record))


def _process(record: run_record.RunRecord) -> int:
    """Id of the process of this machine that drives a run; 0 where there is none."""
    host, _, rest = record.process.partition(" ")
    pid = rest.partition(" ")[0]
    return (
        int(pid)
        if host == os.uname().nodename and pid.isdigit() and not run_record.is_gone(record.process)
        else 0
    )


def resume_command(run: Run, record: run_record.RunRecord) -> str:
    """The command that goes on with a run where it has stopped; empty for one on a cluster."""
    # Pods are started again by what has launched them.
    if "://" in run.place or not record.process:
        return ""
    until = record.stages[-1].partition("-")[0] if record.stages else FLOW[-1].name
    command = ["anadil", "run", join(run.place, "runs", run.id, run_record.RECIPE_FILE), "--work", run.place]
    command += [] if until == FLOW[-1].name else ["--until", until]
    return shlex.join(command)


def remedy(record: run_record.RunRecord) -> str:
    """Say what comes before the command is given again, or nothing."""
    if record.state == "running" or (run_record.is_gone(record.process) and record.exit_code is None):
        return ""
    code = record.exit_code or next((step.exit_code for step in record.steps.values() if step.exit_code), 0)
    return BY_EXIT_CODE.get(code, AnadilError).before_again


def _ask_to_stop(watched: Watched, request: Request) -> Response:
    """Ask whether a run is to be stopped, and say what that loses."""
    run = watched.run(request.path_params["id"])
    state = run_state(watched, run.id)
    _stoppable(run, state.record)
    return page(request, "stop.html.j2", {"title": "Stop this run?", "run": run, "state": state})


def _stoppable(run: Run, record: run_record.RunRecord) -> int:
    """Return the process that a signal stops a run by."""
    # The page may be minutes old.
    if record.state != "running":
        raise DataError(f"{run.id}: has ended already ({record.state})")
    if pid := _process(record):
        return pid
    raise PreflightError(f"{run.id}: runs on another machine; stop it there, or a job with `anadil stop JOB`")


def _stop(watched: Watched, request: Request) -> Response:
    """Ask a run to save and end, as Ctrl-C does."""
    run = watched.run(request.path_params["id"])
    pid = _stoppable(run, run_state(watched, run.id).record)
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        raise PreflightError(
            f"{run.id}: process {pid} cannot be stopped ({error.strerror}); stop it as its user"
        ) from None
    watched.stopping[run.id] = time.time()
    return RedirectResponse(f"/run/{run.id}", 303)


async def _note(watched: Watched, request: Request) -> Response:
    fields = await form_of(request)
    run = await run_in_threadpool(watched.run, request.path_params["id"])
    await run_in_threadpool(set_note, run.place, run.id, fields)
    return RedirectResponse(f"/run/{run.id}", 303)


def _show_card(watched: Watched, request: Request) -> Response:
    """Show a card of an artifact: a file of Markdown that its manifest names."""
    run, word, name = (
        watched.run(request.path_params["id"]), request.path_params["word"], request.path_params["name"]
    )  # fmt: skip
    uri = uri_of(run, word)
    manifest = finished_manifest(uri, word.partition(".")[0])
    if name not in manifest.files or not name.endswith(".md"):
        raise DataError(f"{name[:60]}: not a card of {word}, go back to the report")
    text = read_verified(uri, manifest, name).decode(errors="replace")
    # Front matter is for the hub. HTML of a text is shown as text.
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    folder = f"{uri}/{name}".rpartition("/")[0]
    body = CARD.sub(lambda match: _card_link(run, folder, match), body)
    return page(request, "card.html.j2", {"title": f"Card of the {word}", "run": run, "body": Markup(body)})  # noqa: S704  escaped there


def _show_report(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    uri = uri_of(run, "report")
    text = read_verified(uri, finished_manifest(uri, "report"), "report.html").decode(errors="replace")
    back = f'<header style="padding-top:14px"><a href="/run/{escape(run.id)}">\N{LEFTWARDS ARROW} {escape(run.id)}</a></header>'
    text = CARD.sub(lambda match: _card_link(run, uri, match), text)
    # A function, since the text of a replacement has escapes of its own.
    text = re.sub(r"<body[^>]*>", lambda match: match[0] + back, text, count=1)
    # Its style is in it, and no script of it runs.
    return HTMLResponse(text.encode(errors="replace"), headers={"Content-Security-Policy": FILE_POLICY})


def _card_link(run: Run, report: str, link: re.Match[str]) -> str:
    """Address here of a card that a report beside it links by its path. A link to no artifact of the run stays."""
    parts = report.split("/")
    for part in link[1].split("/"):
        parts = parts[:-1] if part == ".." else [*parts, part]
    path = "/".join(parts)
    known = (
        f"/run/{run.id}/card/{word}{path[len(uri) :]}"
        for word, uri in run.artifacts.items()
        if path.startswith(f"{uri}/")
    )
    return f'href="{escape(next(known, link[1]))}"'
