"""Short runs of layouts on this machine, and the measurements that they leave.

A run is a process of its own, `python -m anadil.cli.calibrate SPEC`, so that a lack of memory ends it alone.
"""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from anadil import __version__
from anadil.artifacts import storage
from anadil.core.errors import DataError, RecipeError
from anadil.core.format import human_bytes
from anadil.core.own_folder import cache_folder
from anadil.core.reasons import reason_of
from anadil.plan.calibration import Measurement
from anadil.plan.instances import Machine, this_machine
from anadil.plan.layout import Layout, Work
from anadil.plan.model_shape import Shape, Trains
from anadil.recipe.pretrain import Parallelism, Pretrain
from anadil.recipe.sections import Recipe
from anadil.runtime.environment import PARENT_VARIABLE

log = logging.getLogger(__name__)

MODULE = "anadil.cli.calibrate"
TIMED_STEPS = 5
"""Steps that are timed; their median counts."""
NEEDED_SECTIONS = {"language", "seed", "base", "tokenizer", "pretrain"}
"""Sections of a recipe that a run needs. The others may name private places."""
QUIET = 1.5
"""Slowest over fastest step above which a measurement is doubtful. Assumption."""
STOP_GRACE_S = 20.0
"""Time that a run past its limit has to end; torchrun stops its processes in it."""
MARK = '{"anadil_measurements":'
"""Begin of a line with results."""
IDENTITY = {"device", "shape", "layout", "work", "versions"}
"""Fields that two measurements share if one run serves both."""
PACKAGES = ("torch", "transformers", "liger-kernel")

_MEASUREMENTS = TypeAdapter(list[Measurement])
_MEASUREMENT = TypeAdapter(Measurement)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Some steps of the real trainer under one layout; as JSON it is the argument of the process that runs them."""

    recipe: Recipe
    shape: Shape
    layout: Layout
    work: Work
    trains: tuple[Trains, ...]
    """Phase kinds, measured one after another."""
    steps: int = TIMED_STEPS
    device: str
    """See `Measurement.device`."""

    def as_json(self) -> str:
        """The run without the sections of the recipe that it does not need."""
        recipe = self.recipe.model_dump(mode="json", include=NEEDED_SECTIONS)
        return json.dumps(_SPEC.dump_python(self, mode="json") | {"recipe": recipe}, separators=(",", ":"))

    def blank(self, trains: Trains) -> Measurement:
        """The measurement of a phase kind, before anything was measured."""
        return Measurement(
            status="ok",
            device=self.device,
            shape=self.shape,
            layout=self.layout,
            work=replace(self.work, trains=trains),
            versions=versions(),
            steps=self.steps,
        )


_SPEC = TypeAdapter(RunSpec)


def spec_from(text: str) -> RunSpec:
    """The run that JSON describes."""
    try:
        spec = _SPEC.validate_json(text)
    except ValidationError as error:
        mistakes = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'the JSON'}: {reason_of(each)}"
            for each in error.errors(include_url=False, include_input=False)
        )
        raise RecipeError(f"{text[:100]}: {mistakes}; give what anadil plan --jobs writes") from None
    if spec.steps < 1:
        raise RecipeError(f"steps {spec.steps}: time at least one step")
    return spec


def run_spec(
    layout: Layout, recipe: Recipe, shape: Shape, work: Work, device: str, *, steps: int = TIMED_STEPS
) -> RunSpec:
    """A run of every phase kind of a recipe."""
    trains = tuple(dict.fromkeys(phase.trains for phase in recipe.pretrain.phases))
    return RunSpec(
        recipe=recipe, shape=shape, layout=layout, work=work, trains=trains, steps=steps, device=device
    )


def with_layout(settings: Pretrain, layout: Layout, work: Work) -> Pretrain:
    """Section `pretrain` with a layout and a step's work in place of its own."""
    degrees = {**layout.degrees, "prefetch": layout.prefetch, "reshard": layout.reshard}
    changed = {
        "batch_size": layout.batch_size,
        "micro_batch_size": layout.micro_batch_size,
        "sequence_length": work.sequence_length,
        "precision": work.compute,
        "state": work.state,
        "kernels": work.kernels,
        "activation_checkpointing": layout.recompute,
        "parallelism": Parallelism.model_validate(degrees),
    }
    return settings.model_copy(update=changed)


def default_folder() -> Path:
    """Folder of the measurements: in ANADIL_CACHE, else in the user's cache."""
    place = os.environ.get("ANADIL_CACHE")
    return (Path(place) if place else cache_folder()) / "measurements"


def versions() -> dict[str, str]:
    """Packages that decide speed and memory; without the build, which `+cpu` or `+cu130` names."""
    packages = {"anadil": __version__}
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return packages


def measurement_path(measurement: Measurement, folder: Path) -> Path:
    """File of a measurement, named by a digest of its identity."""
    data = _MEASUREMENT.dump_python(measurement, mode="json", include=IDENTITY)
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    return folder / f"{digest[:32]}.json"


def save_measurement(measurement: Measurement, folder: Path) -> None:
    """Write a measurement in one step; a folder that cannot be written costs another run."""
    path = measurement_path(measurement, folder)
    try:
        storage.store(str(path)).write(str(path), _MEASUREMENT.dump_json(measurement, indent=1) + b"\n")
    except OSError as error:
        log.warning("%s: the measurement cannot be saved (%s)", folder, error.strerror or error)


def load_measurements(folder: Path) -> list[Measurement]:
    """All saved measurements, of any device and model."""
    return [each for path in sorted(folder.glob("*.json")) if (each := load_measurement(path))]


def load_measurement(path: Path) -> Measurement | None:
    """A saved measurement; None where there is none, and with a warning where it cannot be read."""
    try:
        return _MEASUREMENT.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "damaged, or of another version"
        log.warning("%s: not a measurement (%s); it is not used", path, reason)
        return None


def result_line(measurements: Sequence[Measurement]) -> str:
    """Results as the one line that a run prints."""
    data = _MEASUREMENTS.dump_python(list(measurements), mode="json")
    return f"{MARK} {json.dumps(data, ensure_ascii=False)}}}"


def results_in(text: str) -> list[Measurement]:
    """The results in a log, whatever stands around them. Two processes may print the same one."""
    results: dict[Path, Measurement] = {}
    for line in text.splitlines():
        begin = line.find(MARK)
        if begin < 0:
            continue
        try:
            data: Any = json.JSONDecoder().raw_decode(line[begin:])[0]
            # In JSON mode, where lists become tuples also under strictness.
            measurements = _MEASUREMENTS.validate_json(json.dumps(data["anadil_measurements"]))
        except (ValueError, KeyError) as error:
            log.warning("a line of results cannot be read (%s); it is skipped", str(error).splitlines()[0])
            continue
        results |= {measurement_path(each, Path()): each for each in measurements}
    return list(results.values())


def read_logs(paths: Iterable[Path], folder: Path) -> list[Measurement]:
    """Take the results of jobs from files with what `kubectl logs` printed, and save them."""
    measurements: list[Measurement] = []
    for path in paths:
        try:
            results = results_in(path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        if not results:
            raise DataError(f"{path}: holds no results; give what `kubectl logs` of a measuring job printed")
        measurements += results
    for each in measurements:
        save_measurement(each, folder)
    return measurements


def measure_layouts(
    specs: Sequence[RunSpec], machine: Machine, folder: Path, timeout_s: float = 900.0
) -> list[Measurement]:
    """Measure layouts on this machine, one process after another; saved results are taken first.

    The log names each layout that this machine cannot run because it is not `machine`, and each run that failed.
    One layout takes `timeout_s` at most.
    """
    measurements: list[Measurement] = []
    here = this_machine()
    for number, spec in enumerate(specs, 1):
        layout, why = spec.layout, ""
        if here.device != machine.device:
            why = f"this machine has {here.device}, not {machine.device}; measure on a {machine.name} by its jobs"
        elif layout.devices > here.devices:
            why = (
                f"it takes {layout.devices} devices and this machine has {here.devices}; measure by its jobs"
            )
        if why:
            log.info("%s is not measured: %s", layout.name(), why)
        else:
            measurements += _measured(spec, folder, timeout_s, f"{number} of {len(specs)}")
    return measurements


def _measured(spec: RunSpec, folder: Path, timeout_s: float, place: str) -> list[Measurement]:
    layout = spec.layout
    title = f"{layout.name()}, {layout.micro_batch_size} sequences at a time, {layout.recompute} recompute"
    saved = [load_measurement(measurement_path(spec.blank(kind), folder)) for kind in spec.trains]
    # A measurement that something else ran beside is replaced.
    steady = [each for each in saved if each and not (each.spread and each.spread > QUIET)]
    missing = tuple(kind for kind in spec.trains if kind not in {each.work.trains for each in steady})
    if not missing:
        log.info("%s (%s): measured before", title, place)
        return steady
    log.info("%s (%s): measuring", title, place)
    output, failure = _run(replace(spec, trains=missing), timeout_s)
    results = results_in(output)
    for each in results:
        _report(each)
        save_measurement(each, folder)
    if failure:
        log.warning("%s: %s", title, failure)
    return steady + results


def _report(one: Measurement) -> None:
    if one.status != "ok":
        log.warning("%s, trains %s: %s", one.layout.name(), one.work.trains, one.status)
        return
    memory = f", {human_bytes(one.allocated_bytes)}" if one.allocated_bytes else ""
    rate = f"{one.tokens_per_s_per_device or 0.0:,.0f}"
    log.info("trains %s: %s tokens/s on each device%s", one.work.trains, rate, memory)
    if one.spread and one.spread > QUIET:
        log.warning(
            "the slowest step took %.1f times as long as the fastest; does something else run here?",
            one.spread,
        )


def _run(spec: RunSpec, timeout_s: float) -> tuple[str, str]:
    """Output of the process of a run, and why it failed; empty where it did not."""
    command = [sys.executable, "-m", MODULE, spec.as_json()]
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    late = False
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(process.pid, signal.SIGTERM)
            try:
                output, _ = process.communicate(timeout=STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
        finally:
            if process.poll() is None:  # this process itself was interrupted
                os.killpg(process.pid, signal.SIGKILL)
        stderr.seek(0)
        text = stderr.read().decode(errors="replace")
    log.debug("%s", text)
    failure = ""
    if late:
        failure = f"not done after {timeout_s:g} s"
    elif process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        failure = "killed from outside, most likely because this machine's memory ran out"
    elif process.returncode:
        failure = _last_message(text)
    return output.decode(errors="replace"), failure


def _last_message(text: str) -> str:
    """The last message of a log in JSON lines, else its last line."""
    for line in reversed(text.splitlines()):
        try:
            return str(json.loads(line)["msg"])
        except (ValueError, KeyError, TypeError):
            continue
    return text.strip().splitlines()[-1] if text.strip() else "no message"
