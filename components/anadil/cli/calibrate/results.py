"""Measurements as lines and as files, so that what was measured once is not measured again."""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from anadil import __version__
from anadil.core.errors import DataError
from anadil.core.own_folder import cache_folder
from anadil.plan.calibration import Measurement
from anadil.plan.instances import CPU, Machine

log = logging.getLogger(__name__)

MARK = '{"anadil_measurements":'
"""Begin of a line with results."""
IDENTITY = ("device", "shape", "layout", "work", "versions")
"""What a measurement is of; equal identities need one run."""
STATUS_ORDER = ("ok", "out of memory", "timeout", "failed", "stopped")
"""Which of several results of one run counts: processes that others wait for are stopped."""
FINAL_STATUSES = ("ok", "out of memory")
"""Results that another run would give again."""
PACKAGES = ("torch", "transformers", "liger-kernel")

_MEASUREMENTS = TypeAdapter(list[Measurement])
_MEASUREMENT = TypeAdapter(Measurement)


def default_folder() -> Path:
    """Where measurements are kept: the cache of anadil, else that of the user."""
    own = os.environ.get("ANADIL_CACHE")
    return (Path(own) if own else cache_folder()) / "measurements"


def device_of(machine: Machine) -> str:
    """What measurements call a machine's device; a CPU by its model, because CPUs differ."""
    if machine.device != CPU:
        return machine.device
    return f"{CPU}, {cpu_model()}, {machine.vcpus} logical"


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, as the kernel tells it."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    return names[0] if names else os.uname().machine


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
    """What stands for a measurement's identity."""
    data = _MEASUREMENT.dump_python(measurement, mode="json", include=set(IDENTITY))
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]


def keep_measurement(measurement: Measurement, folder: Path) -> None:
    """Write a measurement in one step; a folder that cannot be written only costs the memory of it."""
    text = _MEASUREMENT.dump_json(measurement, indent=1).decode() + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=".partial-", dir=folder)
        draft = Path(name)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(text)
            draft.replace(folder / f"{measurement_key(measurement)}.json")
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: the measurement cannot be saved (%s)", folder, error.strerror or error)


def find_measurement(measurement: Measurement, folder: Path) -> Measurement | None:
    """The kept measurement with the same identity."""
    return _read(folder / f"{measurement_key(measurement)}.json")


def load_measurements(folder: Path) -> list[Measurement]:
    """All kept measurements, of any device and model."""
    found = [_read(path) for path in sorted(folder.glob("*.json"))]
    return [each for each in found if each is not None]


def _read(path: Path) -> Measurement | None:
    try:
        return _MEASUREMENT.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        what = error.strerror if isinstance(error, OSError) else "damaged, or of another version"
        log.warning("%s: no measurement (%s); it is not used", path, what)
        return None


def result_line(measurements: Sequence[Measurement]) -> str:
    """Results as the one line that a run prints."""
    data = _MEASUREMENTS.dump_python(list(measurements), mode="json")
    return f"{MARK} {json.dumps(data, ensure_ascii=False)}}}"


def results_in(text: str) -> list[Measurement]:
    """The results in a log, whatever stands around them; one for each identity."""
    best: dict[str, Measurement] = {}
    for line in text.splitlines():
        for each in _results_of(line):
            key = measurement_key(each)
            if key not in best or STATUS_ORDER.index(each.status) < STATUS_ORDER.index(best[key].status):
                best[key] = each
    return list(best.values())


def _results_of(line: str) -> Iterable[Measurement]:
    begin = line.find(MARK)
    if begin < 0:
        return []
    try:
        data: Any = json.JSONDecoder().raw_decode(line[begin:])[0]
        # As JSON, where strictness does not matter and lists become what they should.
        return _MEASUREMENTS.validate_json(json.dumps(data["anadil_measurements"]))
    except (ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        log.warning("a line of results cannot be read (%s); it is left out", reason)
        return []


def read_logs(paths: Iterable[Path], folder: Path) -> list[Measurement]:
    """Take the results of runs elsewhere from their logs, and keep them.

    Args:
        paths: Files with what `kubectl logs` printed.
        folder: See `default_folder`.

    Raises:
        DataError: A file cannot be read or holds no results.
    """
    found: list[Measurement] = []
    for path in paths:
        try:
            results = results_in(path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        if not results:
            raise DataError(f"{path}: holds no results; give what `kubectl logs` of a measuring job printed")
        found += results
    for each in found:
        if each.status in FINAL_STATUSES:
            keep_measurement(each, folder)
    return found
