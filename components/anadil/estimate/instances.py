"""The machines that a run can use: devices, network and prices, from a dated table or a file."""

import functools
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from anadil.core import strict_yaml
from anadil.core.errors import RecipeError
from anadil.core.format import GIB, MIB, counted
from anadil.core.processes import run_child
from anadil.core.processor import has_amx_products, has_bf16_products
from anadil.core.reasons import reason_of
from anadil.recipe.fields import StrictModel, Text, did_you_mean
from anadil.recipe.load import display_value
from anadil.runtime.threads import num_cores

log = logging.getLogger(__name__)

TABLE = Path(__file__).with_name("instances.yaml")
CPU = "CPU"
"""Device of a machine without accelerators."""
LOCAL = "local"
"""Name of `this_machine`."""
DRIVER_BYTES = int(0.6 * GIB)
"""Bytes that `nvidia-smi` counts and CUDA keeps: 0.5 to 0.7 GiB on A100, H100 and B200."""
PCIE = 31.5e9
"""PCIe 4.0 x16, one direction, bytes a second; what devices without NVLink talk over at best."""
OTHER_FORMS = re.compile(r"\b(PCIE|NVL|MIG|MAX-Q|LAPTOP)\b")
"""Forms of a device with other peaks than in the table."""
ASSUMED_FLOPS = 40e9
"""FLOP/s of one logical CPU where numpy is not installed: AVX2, 32 FLOP a cycle at 2.5 GHz, shared by the two threads of a core."""
ASSUMED_BANDWIDTH = 5e9
"""The same in bytes a second: two channels of DDR4-3200 over some ten threads."""
SIDE = 1_024
"""Rows and columns of the FP32 matrices that are multiplied: 2.1 GFLOP, 12 MiB."""
COPIED_BYTES = 64 * 1024**2
"""More than the caches hold, in each thread."""
COPIES = 4
"""Most threads that copy: more get no more out of most memories."""
TRIES = 5
"""The best of them counts, in CPU seconds: what runs beside now may not run then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine type; bandwidths are of one direction in bytes a second, peaks are dense."""

    name: str
    device: str
    """Such as `H100` or `CPU`."""
    devices: int
    """Accelerators of one machine; a machine without any counts its CPU as one."""
    memory_bytes: int
    """Memory of one device that programs can use."""
    flops_bf16: float
    """Peak of one device, FLOP/s; 0 where it is not known."""
    hbm: float
    """Bandwidth of one device's memory; 0 where it is not known."""
    nvlink: float
    """Bandwidth between devices of one machine, of each device: NVLink, else PCIe."""
    network: float
    """Bandwidth between machines, of the whole machine; 0 where it is not known."""
    vcpus: int
    ram_bytes: int
    disk_bytes: int
    """Local NVMe; of this machine, what is free under the working directory."""
    on_demand: float | None
    """USD an hour; None where it is not known."""
    spot: float | None
    training_plan: float | None
    checked: str
    """Date and origin of the prices."""
    efa: int | None = None
    """EFA interfaces that a pod can ask for; None where the number is not known."""
    cpu_bf16: bool = False
    """True if it trains on a CPU that has BF16 products of its own."""
    cpu_amx: bool = False
    """True if those are of tiles."""


class Price(StrictModel):
    """USD an hour of one machine; a number alone is a price without date and source."""

    usd_per_hour: PositiveFloat
    checked: Annotated[str, Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")] | None = None
    source: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _number_alone(cls, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return {"usd_per_hour": value} if is_number else value

    def origin(self) -> str:
        """Date and source, as far as they are known."""
        date = self.checked or "not checked"
        return f"{date}, {self.source}" if self.source else date


class Instance(StrictModel):
    """A row of instances.yaml, in the units that data sheets use; the file says more."""

    device: Text
    devices: PositiveInt
    memory_gib: PositiveFloat
    bf16_tflops: PositiveFloat
    fp8_tflops: PositiveFloat | None = None
    hbm_gb_per_s: PositiveFloat
    nvlink_gb_per_s: PositiveFloat | None = None
    """Both directions together."""
    network_gbit_per_s: PositiveFloat
    efa: NonNegativeInt | None = None
    vcpus: PositiveInt
    ram_gib: PositiveFloat
    disk_gb: NonNegativeFloat = 0
    source: Text | None = None
    on_demand: Price | None = None
    spot: Price | None = None
    training_plan: Price | None = None


def machine(name: str, prices: Path | None = None) -> Machine:
    """The machine type of a name such as `p5.48xlarge`, of the table or of a file of prices."""
    known = {each.name: each for each in machines(prices)}
    plain = plain_name(name)
    if plain in known:
        return known[plain]
    raise RecipeError(
        f"cluster.instance: unknown machine type {name!r}{did_you_mean(plain, list(known)) or '.'} "
        f"Known are {', '.join(known)}; describe another one in a file for --prices"
    )


def plain_name(name: str) -> str:
    """A machine type's name as EC2 has it: SageMaker and HyperPod write `ml.` before it."""
    return name.removeprefix("ml.")


def machines(prices: Path | None = None) -> tuple[Machine, ...]:
    """Every machine type of the table, and of a file whose cells go before the table's."""
    rows, lines = _own_table()
    if prices is not None:
        given, lines = _read(prices)
        for name, cells in given.items():
            row = rows.get(name)
            # A price goes whole, so that it does not keep an old date.
            both = isinstance(row, dict) and isinstance(cells, dict)
            rows = {**rows, name: {**row, **cells} if both else cells}  # type: ignore[dict-item]
    try:
        # JSON mode, as for recipes: strict there means no text for a number, but an integer for a float.
        table = TypeAdapter(dict[str, Instance]).validate_json(json.dumps(rows), strict=True)
    except ValidationError as error:
        raise RecipeError(_mistakes(error, rows, lines, prices or TABLE)) from None
    return tuple(_machine(name, row) for name, row in table.items())


@functools.cache  # every plan, and every run for its price, asks for it
def _own_table() -> tuple[dict[str, object], dict[strict_yaml.Path, int]]:
    return _read(TABLE)


def _read(path: Path) -> tuple[dict[str, object], dict[strict_yaml.Path, int]]:
    """Rows and lines of a file by `plain_name`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"--prices {path}: cannot be read: {error}") from None
    data, lines = strict_yaml.parse_yaml(text, str(path))
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise RecipeError(
            f"{path}: holds {type(data).__name__}, not a table of machine types; begin with a type and a "
            "colon, such as `p5.48xlarge:`"
        )
    rows: dict[str, object] = {}
    for name, row in data.items():
        plain = plain_name(str(name))
        if plain in rows:
            raise RecipeError(f"{path}: {name} and {plain} are one machine type; leave one of the two out")
        rows[plain] = row
    return rows, {(plain_name(str(at[0])), *at[1:]) if at else at: line for at, line in lines.items()}


def _mistakes(
    error: ValidationError, rows: Mapping[str, object], lines: Mapping[strict_yaml.Path, int], path: Path
) -> str:
    texts: list[str] = []
    missing: dict[str, list[str]] = {}
    for mistake in error.errors(include_url=False):
        name, *cells = mistake["loc"]
        if mistake["type"] == "missing" and len(cells) == 1:
            missing.setdefault(str(name), []).append(str(cells[0]))
            continue
        reason = reason_of(mistake)
        if mistake["type"] == "extra_forbidden":
            fields = list((Instance if len(cells) == 1 else Price).model_fields)
            reason = f"unknown key{did_you_mean(str(cells[-1]), fields) or '.'} Keys are {', '.join(fields)}"
        elif mistake["type"] == "string_pattern_mismatch":
            reason = "write the date as 2026-11-09 or 2026-11"
        texts.append(f"{_place(mistake['loc'], lines)}: {reason} (got {display_value(rows, mistake['loc'])})")
    known = list(_own_table()[0])
    for new, needed in missing.items():
        guess = did_you_mean(new, known) or "."
        texts.append(f"{_place((new,), lines)}: not in the table{guess} A new type needs {', '.join(needed)}")
    return "\n".join([f"{path}: {counted(len(texts), 'mistake')}", *(f"  {text}" for text in texts)])


def _place(loc: tuple[int | str, ...], lines: Mapping[strict_yaml.Path, int]) -> str:
    """Line and key of a cell; the line of what it stands in where it has none."""
    line = next((lines[loc[:end]] for end in range(len(loc), 0, -1) if loc[:end] in lines), None)
    key = ".".join(map(str, loc))
    return f"line {line}: {key}" if line else key


def _machine(name: str, row: Instance) -> Machine:
    prices = {"on demand": row.on_demand, "spot": row.spot, "training plan": row.training_plan}
    return Machine(
        name=name,
        device=row.device,
        devices=row.devices,
        memory_bytes=int(row.memory_gib * GIB),
        flops_bf16=row.bf16_tflops * 1e12,
        hbm=row.hbm_gb_per_s * 1e9,
        nvlink=row.nvlink_gb_per_s * 1e9 / 2 if row.nvlink_gb_per_s else PCIE,
        network=row.network_gbit_per_s * 1e9 / 8,
        vcpus=row.vcpus,
        ram_bytes=int(row.ram_gib * GIB),
        disk_bytes=int(row.disk_gb * 1e9),
        on_demand=row.on_demand.usd_per_hour if row.on_demand else None,
        spot=row.spot.usd_per_hour if row.spot else None,
        training_plan=row.training_plan.usd_per_hour if row.training_plan else None,
        checked="; ".join(f"{kind} {price.origin()}" for kind, price in prices.items() if price),
        efa=row.efa,
    )


def this_machine() -> Machine:
    """The machine that this program runs on: its GPUs, else its CPU as one device.

    Peaks are those of a device of the table by the name that the driver gives; of another
    device they are 0, which means not known. A CPU's are measured. Nothing is priced.
    """
    flops, bandwidth = cpu_speed()
    ram = ram_bytes()
    cpu = Machine(
        name=LOCAL,
        device=CPU,
        devices=1,
        memory_bytes=ram,
        flops_bf16=flops,
        hbm=bandwidth,
        nvlink=bandwidth,
        network=0.0,
        vcpus=num_cores(),
        ram_bytes=ram,
        disk_bytes=shutil.disk_usage(Path.cwd()).free,
        on_demand=None,
        spot=None,
        training_plan=None,
        checked="",
        cpu_bf16=has_bf16_products(),
        cpu_amx=has_amx_products(),
    )
    gpus = _gpus()
    return _with_gpus(cpu, gpus) if gpus else cpu


def _gpus() -> list[tuple[str, int]]:
    """Name and bytes of each GPU that programs started from here would see."""
    command = shutil.which("nvidia-smi")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if command is None or visible in ("", "-1"):
        return []
    only = [f"--id={visible}"] if visible else []
    query = [command, *only, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = run_child(query, 30)
        done.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("nvidia-smi does not answer (%s); planning for the CPU", error)
        return []
    matches = [re.fullmatch(r"\s*(.+?)\s*,\s*(\d+)\s*", line) for line in done.stdout.splitlines()]
    return [(match[1], int(match[2]) * MIB) for match in matches if match]


def _with_gpus(host: Machine, gpus: Sequence[tuple[str, int]]) -> Machine:
    """The host with its GPUs; of unequal ones the smallest counts for all."""
    name, total = min(gpus, key=lambda gpu: gpu[1])
    usable = max(total - DRIVER_BYTES, 0)
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    same = [each for each in machines() if each.device.split()[0] in words]
    if OTHER_FORMS.search(name.upper()) or not same:
        log.warning("%s is not in the table: its speed is not known, so no time can be predicted", name)
        peaks = replace(host, flops_bf16=0.0, hbm=0.0, nvlink=0.0)
        device = name.removeprefix("NVIDIA ")
    else:
        peaks = min(same, key=lambda each: abs(each.memory_bytes - usable))
        device = peaks.device
    return replace(
        host,
        device=device,
        devices=len(gpus),
        memory_bytes=usable,
        flops_bf16=peaks.flops_bf16,
        hbm=peaks.hbm,
        nvlink=peaks.nvlink,
    )


def ram_bytes(cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Main memory of this machine, or less where this process's control group allows less.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    lines = membership.read_text(encoding="utf-8").splitlines() if membership.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        # Every group above sets a limit too. In a container the path may be the host's.
        for folder in (group, *group.parents):
            limit = folder / name
            if folder.is_relative_to(top) and limit.is_file():
                text = limit.read_text(encoding="ascii").strip()
                limits += [int(text)] if text.isdigit() else []
    return min(limits)


@functools.cache
def cpu_speed() -> tuple[float, float]:
    """FP32 FLOP/s of matrix products, and bytes a second that a copy reads and writes, of all CPUs together."""
    if importlib.util.find_spec("numpy") is None:
        return num_cores() * ASSUMED_FLOPS, num_cores() * ASSUMED_BANDWIDTH
    import numpy as np

    left = np.ones((SIDE, SIDE), dtype=np.float32)
    product = np.empty_like(left)
    threads = min(num_cores(), COPIES)
    sources = np.ones((threads, COPIED_BYTES), dtype=np.uint8)
    copies = np.empty_like(sources)
    flops = 2 * SIDE**3 / _best_s(lambda: np.matmul(left, left, out=product)) * num_cores()
    with ThreadPoolExecutor(threads) as pool:
        copies_s = _best_s(lambda: list(pool.map(np.copyto, copies, sources)))
    return flops, 2 * threads * COPIED_BYTES / (copies_s / threads)


def _best_s(work: Callable[[], object]) -> float:
    durations = []
    for _ in range(TRIES):
        begin = time.process_time()
        work()
        durations.append(time.process_time() - begin)
    return min(durations)
