"""Short runs of layouts on this machine, and the measurements that are kept."""

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
"""Sections of a recipe that a run needs; the rest may name places that are nobody's business."""
QUIET = 1.5
"""Slowest over fastest step above which a measurement is doubtful. Assumption."""
STOP_GRACE_S = 20.0
"""How long a run that is out of time may take to end; torchrun stops its processes in it."""
MARK = '{"anadil_measurements":'
"""Begin of a line with results."""
IDENTITY = ("device", "shape", "layout", "work", "versions")
"""Measurements that agree in these need one run."""
PACKAGES = ("torch", "transformers", "liger-kernel")

_MEASUREMENTS = TypeAdapter(list[Measurement])
_MEASUREMENT = TypeAdapter(Measurement)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Some steps of the real trainer under one layout; as JSON it is the argument of the process that runs them."""

    recipe: Recipe
    shape: Shape
    layout: Layout
    work: Work | None
    """None: what training does on the device of the run, with documents as long as a sequence."""
    trains: tuple[Trains, ...]
    """Phase kinds, measured one after another."""
    steps: int = TIMED_STEPS
    device: str
    """See `Measurement.device`."""

    def as_json(self) -> str:
        """The run without the sections of the recipe that it does not need."""
        recipe = self.recipe.model_dump(mode="json", include=NEEDED_SECTIONS)
        return json.dumps(_SPEC.dump_python(self, mode="json") | {"recipe": recipe}, separators=(",", ":"))

    def blank(self, trains: Trains, work: Work, driver_name: str = "") -> Measurement:
        """The measurement of a phase kind, before anything was measured."""
        return Measurement(
            status="ok",
            device=self.device,
            driver_name=driver_name,
            shape=self.shape,
            layout=self.layout,
            work=replace(work, trains=trains),
            versions=versions(),
            steps=self.steps,
        )


_SPEC = TypeAdapter(RunSpec)


def spec_from(text: str) -> RunSpec:
    """The run that JSON describes.

    Raises:
        RecipeError: It describes none.
    """
    try:
        spec = _SPEC.validate_json(text)
    except ValidationError as error:
        mistakes = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'all of it'}: {reason_of(each)}"
            for each in error.errors(include_url=False, include_input=False)
        )
        raise RecipeError(f"{text[:100]}: {mistakes}; give what anadil plan --jobs writes") from None
    if spec.steps < 1:
        raise RecipeError(f"steps {spec.steps}: time at least one step")
    return spec


def run_spec(
    layout: Layout, recipe: Recipe, shape: Shape, work: Work | None, device: str, *, steps: int = TIMED_STEPS
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
    """Where measurements are kept: the cache of anadil, else that of the user."""
    own = os.environ.get("ANADIL_CACHE")
    return (Path(own) if own else cache_folder()) / "measurements"


def versions() -> dict[str, str]:
    """Packages that decide speed and memory; without the build, which `+cpu` or `+cu130` names."""
    packages = {"anadil": __version__}
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return packages


def measurement_key(measurement: Measurement) -> str:
    """Digest of a measurement's identity."""
    data = _MEASUREMENT.dump_python(measurement, mode="json", include=set(IDENTITY))
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]


def keep_measurement(measurement: Measurement, folder: Path) -> None:
    """Write a measurement in one step; a folder that cannot be written costs another run."""
    path = folder / f"{measurement_key(measurement)}.json"
    draft = path.with_name(f".partial-{path.stem}-{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(_MEASUREMENT.dump_json(measurement, indent=1) + b"\n")
        draft.replace(path)
    except OSError as error:
        log.warning("%s: the measurement cannot be saved (%s)", folder, error.strerror or error)


def find_measurement(measurement: Measurement, folder: Path) -> Measurement | None:
    """The kept measurement with the same identity."""
    return _read(folder / f"{measurement_key(measurement)}.json")


def load_measurements(folder: Path) -> list[Measurement]:
    """All kept measurements, of any device and model."""
    return [each for path in sorted(folder.glob("*.json")) if (each := _read(path))]


def _read(path: Path) -> Measurement | None:
    try:
        return _MEASUREMENT.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "damaged, or of another version"
        log.warning("%s: no measurement (%s); it is not used", path, reason)
        return None


def result_line(measurements: Sequence[Measurement]) -> str:
    """Results as the one line that a run prints."""
    data = _MEASUREMENTS.dump_python(list(measurements), mode="json")
    return f"{MARK} {json.dumps(data, ensure_ascii=False)}}}"


def results_in(text: str) -> list[Measurement]:
    """The results in a log, whatever stands around them; one for each identity."""
    return list(
        {measurement_key(each): each for line in text.splitlines() for each in _results_of(line)}.values()
    )


def _results_of(line: str) -> Iterable[Measurement]:
    begin = line.find(MARK)
    if begin < 0:
        return []
    try:
        data: Any = json.JSONDecoder().raw_decode(line[begin:])[0]
        # As JSON, where strictness does not matter and lists become what they should.
        return _MEASUREMENTS.validate_json(json.dumps(data["anadil_measurements"]))
    except (ValueError, KeyError) as error:
        log.warning("a line of results cannot be read (%s); it is skipped", str(error).splitlines()[0])
        return []


def read_logs(paths: Iterable[Path], folder: Path) -> list[Measurement]:
    """Take the results of jobs from their logs, and keep them.

    Args:
        paths: Files with what `kubectl logs` printed.
        folder: See `default_folder`.

    Raises:
        DataError: A file cannot be read or holds no results.
    """
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
        keep_measurement(each, folder)
    return measurements


def measure_layouts(
    specs: Sequence[RunSpec], work: Work, machine: Machine, *, runs: Path, timeout_s: float = 900.0
) -> list[Measurement]:
    """Measure layouts on this machine, one process after another; kept results are taken first.

    The log names each layout that this version's trainer or this machine cannot run, and each run that failed.

    Args:
        specs: In the order in which they are measured.
        work: What a step computes; `trains` is each spec's.
        machine: Which this one should be.
        runs: Directory of kept results, see `default_folder`.
        timeout_s: For one layout.
    """
    measurements: list[Measurement] = []
    here = this_machine()
    for number, spec in enumerate(specs, 1):
        if why := _why_not(spec.layout, work, machine, here):
            log.info("%s is not measured: %s", spec.layout.name(), why)
        else:
            measurements += _measured(spec, work, runs, timeout_s, f"{number} of {len(specs)}")
    return measurements


def _why_not(layout: Layout, work: Work, machine: Machine, here: Machine) -> str:
    """Reason that a layout cannot be measured here; empty where it can."""
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
    layout = spec.layout
    title = f"{layout.name()}, {layout.micro_batch_size} sequences at a time, {layout.recompute} recompute"
    kept = [find_measurement(spec.blank(kind, work), runs) for kind in spec.trains]
    # One that something else ran beside is to be replaced.
    steady = [each for each in kept if each and not (each.spread and each.spread > QUIET)]
    missing = tuple(kind for kind in spec.trains if kind not in {each.work.trains for each in steady})
    if not missing:
        log.info("%s (%s): measured before", title, place)
        return steady
    log.info("%s (%s): measuring", title, place)
    results, failure = _run(replace(spec, trains=missing, work=work), timeout_s)
    for each in results:
        _report(each)
        keep_measurement(each, runs)
    if failure:
        log.warning("%s: %s", title, failure)
    return steady + results


def _report(one: Measurement) -> None:
    if one.status != "ok":
        log.warning("%s, trains %s: %s", one.layout.name(), one.work.trains, one.status)
        return
    memory = f", {human_bytes(one.memory_bytes)}" if one.memory_bytes else ""
    rate = one.tokens_per_s_per_device or 0.0
    log.info("trains %s: %s tokens/s on each device%s", one.work.trains, f"{rate:,.0f}", memory)
    if one.spread and one.spread > QUIET:
        log.warning(
            "the slowest step took %.1f times as long as the fastest; does something else run here?",
            one.spread,
        )


def _run(spec: RunSpec, timeout_s: float) -> tuple[list[Measurement], str]:
    """Results of a process, and why there are no more."""
    command = [sys.executable, "-m", MODULE, spec.as_json()]
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, env=environment, start_new_session=True
        ) as process,
    ):
        failure = ""
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            failure = f"not done after {timeout_s:g} s"
            output = _stopped(process)
        finally:
            if process.poll() is None:  # this process itself was interrupted
                os.killpg(process.pid, signal.SIGKILL)
        stderr.seek(0)
        text = stderr.read().decode(errors="replace")
    log.debug("%s", text)
    if process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        failure = failure or "killed from outside, most likely because this machine's memory ran out"
    elif process.returncode:
        failure = failure or _last_message(text)
    return results_in(output.decode(errors="replace")), failure


def _stopped(process: "subprocess.Popen[bytes]") -> bytes:
    """The output of a run that is asked to end, then killed with all that it started."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=STOP_GRACE_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def _last_message(text: str) -> str:
    """The last message of a log."""
    for line in reversed(text.splitlines()):
        try:
            return str(json.loads(line)["msg"])
        except (ValueError, KeyError, TypeError):
            continue
    return text.strip().splitlines()[-1] if text.strip() else "no message"
