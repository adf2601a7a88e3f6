"""Short runs of layouts on this machine, each in a process of its own, and what they measured."""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from anadil.cli.calibrate.results import (
    FINAL_STATUSES,
    device_of,
    find_measurement,
    keep_measurement,
    results_in,
    versions,
)
from anadil.cli.calibrate.spec import TIMED_STEPS, RunSpec
from anadil.core.format import human_bytes
from anadil.plan.calibration import Measurement, RunStatus
from anadil.plan.instances import Machine, this_machine
from anadil.plan.layout import Layout, Work
from anadil.plan.model_shape import Shape
from anadil.recipe.sections import Recipe
from anadil.runtime.environment import PARENT_VARIABLE

log = logging.getLogger(__name__)

QUIET = 1.5
"""Slowest over fastest step above which a measurement is doubtful. Assumption."""
STOP_GRACE_S = 20.0
"""How long a run that is out of time may take to say so; torchrun stops its processes in it."""


def measure_layouts(
    candidates: Sequence[Layout],
    recipe: Recipe,
    shape: Shape,
    work: Work,
    machine: Machine,
    *,
    runs: Path,
    steps: int = TIMED_STEPS,
    timeout_s: float = 900.0,
) -> list[Measurement]:
    """Speed and memory of layouts in each phase kind of a recipe, from kept results or new runs.

    What this version's trainer or this machine cannot run is left out, and the log says why.

    Args:
        candidates: Layouts, in the order in which they are measured.
        recipe: Its seed, its phase kinds and its optimizer are used.
        shape: The model; made at random.
        work: What a step computes; `trains` is taken from the recipe.
        machine: Which this one should be.
        runs: Directory of kept results, see `results.default_folder`.
        steps: Steps that are timed.
        timeout_s: For one layout.
    """
    found: list[Measurement] = []
    here = this_machine()
    for number, layout in enumerate(candidates, 1):
        why = _why_not(layout, work, machine, here)
        if why:
            log.info("%s is not measured: %s", layout.name(), why)
            continue
        spec = RunSpec.of(layout, recipe, shape, work, device_of(machine), steps=steps)
        found += _measured(spec, work, runs, timeout_s, f"{number} of {len(candidates)}")
    return found


def _why_not(layout: Layout, work: Work, machine: Machine, here: Machine) -> str:
    """Why a layout cannot be measured here; empty where it can."""
    if work.loss == "logits":
        return "this version's trainer never holds all logits"
    if here.device != machine.device:
        return (
            f"this machine has {here.device}, not {machine.device}; measure on a {machine.name} by its jobs"
        )
    if layout.devices > here.devices:
        return f"it takes {layout.devices} devices and this machine has {here.devices}; measure by its jobs"
    return ""


def _measured(spec: RunSpec, work: Work, runs: Path, timeout_s: float, place: str) -> list[Measurement]:
    blanks = [
        Measurement(
            status="failed",
            device=spec.device,
            shape=spec.shape,
            layout=spec.layout,
            work=replace(work, trains=kind),
            versions=versions(),
        )
        for kind in spec.trains
    ]
    by_kind = {each.work.trains: _steady(find_measurement(each, runs)) for each in blanks}
    missing = [each for each in blanks if by_kind[each.work.trains] is None]
    if not missing:
        log.info("%s (%s): measured before", _title(spec.layout), place)
        return [each for each in by_kind.values() if each is not None]
    log.info("%s (%s): measuring", _title(spec.layout), place)
    kinds = tuple(each.work.trains for each in missing)
    results, failure = _run(replace(spec, trains=kinds, work=missing[0].work), timeout_s)
    results_by_kind = {each.work.trains: each for each in results if each.layout == spec.layout}
    for each in missing:
        one = results_by_kind.get(each.work.trains, each)
        if one.status in ("stopped", "failed") and failure is not None:
            one = replace(one, status=failure[0], message=one.message or failure[1])
        _report(one)
        if one.status in FINAL_STATUSES:
            keep_measurement(one, runs)
        by_kind[each.work.trains] = one
    return [each for each in by_kind.values() if each is not None]


def _steady(found: Measurement | None) -> Measurement | None:
    """A kept result, unless something else ran beside it: then the next run is to replace it."""
    return None if found is not None and found.spread and found.spread > QUIET else found


def _title(layout: Layout) -> str:
    return f"{layout.name()}, {layout.micro_batch_size} sequences at a time, {layout.recompute} recompute"


def _report(one: Measurement) -> None:
    if one.status != "ok":
        log.warning("%s, trains %s: %s %s", one.layout.name(), one.work.trains, one.status, one.message)
        return
    memory = f", {human_bytes(one.memory_bytes)}" if one.memory_bytes else ""
    rate = one.tokens_per_s_per_device or 0.0
    log.info("trains %s: %s tokens/s on each device%s", one.work.trains, f"{rate:,.0f}", memory)
    if one.spread and one.spread > QUIET:
        log.warning(
            "the slowest step took %.1f times as long as the fastest; does something else run here?",
            one.spread,
        )


def _run(spec: RunSpec, timeout_s: float) -> tuple[list[Measurement], tuple[RunStatus, str] | None]:
    """Results of a run, and what went wrong with the process."""
    command = [sys.executable, "-m", "anadil.cli.calibrate", *spec.arguments()]
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, env=environment, start_new_session=True
        ) as process,
    ):
        late = False
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            late = True
            output = _stopped(process)
        finally:
            if process.poll() is None:  # this process itself was interrupted
                _signal(process, signal.SIGKILL)
        stderr.seek(0)
        said = stderr.read().decode(errors="replace")
    log.debug("%s", said)
    results = results_in(output.decode(errors="replace"))
    if late:
        return results, ("timeout", f"not done after {timeout_s:g} s")
    if process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return results, ("failed", "killed from outside, most likely because this machine's memory ran out")
    if process.returncode:
        return results, ("failed", _last_words(said))
    return results, None


def _stopped(process: "subprocess.Popen[bytes]") -> bytes:
    """Ask a run to end, then make it; what it printed."""
    _signal(process, signal.SIGTERM)
    try:
        return process.communicate(timeout=STOP_GRACE_S)[0]
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)
        return process.communicate()[0]


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    """To the run and all that it started, as far as it is there."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _last_words(said: str) -> str:
    """The last message of a log."""
    for line in reversed(said.splitlines()):
        try:
            message = json.loads(line)["msg"]
        except (ValueError, KeyError, TypeError):
            continue
        return str(message)
    return said.strip().splitlines()[-1] if said.strip() else "without a word"
