"""Tests of every device, of the network and of the disks, before the first step.

A node with a broken device, link or disk spoils days of all others; seconds at the start find it.
"""

import contextlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

import torch
from torch import distributed as dist

from anadil.artifacts import storage
from anadil.artifacts.uri import MANIFEST, join
from anadil.core.errors import AnadilError, PreflightError, RetryableError
from anadil.core.format import counted
from anadil.model.process_group import Group
from anadil.pretrain.resilience.replica_check import checksum

log = logging.getLogger(__name__)

SMALL = 256
"""Rows of the matrices that are also multiplied in FP64 on the CPU."""
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Most relative error, by Frobenius norm: a few roundings of the result (2**-24, 2**-9, 2**-11); TF32
is off, as torch has it."""
REPEATS = 5
LARGE = {"cuda": 4_096, "cpu": 512}
"""Rows of the matrices whose product is timed and must be the same each time."""
SENT_NUMBERS = {"cuda": 16 * 2**20, "cpu": 2**19}
"""Numbers of FP32 that every process sends."""
DISK_BYTES = 16 * 2**20
SLOW_SHARE = 0.5
"""Share of the median below which a device or a disk is named. Assumption."""
PROBE = ".anadil-probe"
UNITS = {
    "matmul": "TFLOP/s",
    "all-reduce": "GB/s",
    "all-gather": "GB/s",
    "disk": "MB/s",
    "local disk": "MB/s",
}


@dataclass(slots=True, kw_only=True)
class BurnInResult:
    """Result of one process."""

    rank: int
    host: str
    device: str
    """Name of its device; only equal devices must give equal bits."""
    digest: int = 0
    """Digest of the large product's bits."""
    rates: dict[str, float] = field(default_factory=dict)
    """By test, in `UNITS`."""
    retry: str = ""
    """A failure that another node would not have."""
    wrong: str = ""
    """A failure that somebody has to mend."""

    @property
    def where(self) -> str:
        """Rank and host, for messages."""
        return f"rank {self.rank} on {self.host}"


def burn_in_enabled(setting: Literal["auto", "always", "never"], device: torch.device) -> bool:
    """Return whether `pretrain.faults.burn_in` asks for the test on this device."""
    return setting == "always" or (setting == "auto" and device.type == "cuda")


def burn_in(
    group: Group,
    device: torch.device,
    dtype: torch.dtype,
    folder: Path,
    archive: str | None = None,
    local: Path | None = None,
) -> list[BurnInResult]:
    """Test device, network, work directory, archive and local disk; every process comes to the same result."""
    started = time.monotonic()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    mine = BurnInResult(rank=group.rank, host=socket.gethostname(), device=name)
    _test_device(mine, device, dtype)
    _test_network(mine, group, device)
    if group.local_rank == 0:
        _test_disk(mine, folder, "disk", "storage.root")
        if local is not None:
            _test_disk(mine, local, "local disk", "pretrain.copies.local_path")
        if archive is not None:
            _test_archive(mine, archive)
    results = group.run_everywhere(lambda: mine)
    refuse_failed(results)
    log.info("burn-in: %s (%.1f s)", summary(results), time.monotonic() - started)
    for line in slow(results):
        log.warning("burn-in: %s", line)
    return results


def refuse_failed(results: Sequence[BurnInResult]) -> None:
    """Refuse to train where a test failed; raises as `burn_in`."""
    wrong = [f"{one.where}: {one.wrong}" for one in results if one.wrong]
    retry = [f"{one.where}: {one.retry}" for one in results if one.retry]
    for device in dict.fromkeys(one.device for one in results):
        same = [one for one in results if one.device == device]
        usual, _ = Counter(one.digest for one in same).most_common(1)[0]
        # Processors of several kinds may round differently, and all of them call themselves CPU.
        retry += [
            f"{one.where}: {device} gives another product than the {device} of the other processes"
            for one in same
            if one.digest != usual and device != "CPU"
        ]
    if wrong:
        raise PreflightError("burn-in: " + "; ".join([*wrong, *retry]))
    if retry:
        raise RetryableError(
            f"burn-in: {'; '.join(retry)}. Take that node out of service and run the same command again"
        )


def slow(results: Sequence[BurnInResult]) -> list[str]:
    """A sentence for each device or disk that is much slower than those of the others."""
    lines = []
    for test in ("matmul", "disk", "local disk"):  # collectives have one speed for all
        rates = [one.rates[test] for one in results if test in one.rates]
        usual = median(rates) if rates else 0.0
        lines += [
            f"{one.where} is slow: {test} {one.rates[test]:.3g} {UNITS[test]}, the median is {usual:.3g}; "
            "it will hold up all others"
            for one in results
            if one.rates.get(test, usual) < SLOW_SHARE * usual
        ]
    return lines


def summary(results: Sequence[BurnInResult]) -> str:
    """Median rate of each test, with its unit."""
    texts = []
    for test, unit in UNITS.items():
        rates = [one.rates[test] for one in results if test in one.rates]
        if rates:
            texts.append(f"{test} {median(rates):.3g} {unit}")
    return f"{counted(len(results), 'process')}, {', '.join(texts)}"


def _test_device(mine: BurnInResult, device: torch.device, dtype: torch.dtype) -> None:
    left, right = (_numbers(SMALL, shift) for shift in (1, 2))
    product = (left.to(device, dtype) @ right.to(device, dtype)).cpu().double()
    expected = left.to(dtype).double() @ right.to(dtype).double()
    error = float((product - expected).norm() / expected.norm())
    if not error <= TOLERANCE[dtype]:  # NaN too
        mine.retry = f"{mine.device} multiplies wrongly (relative error {error:.2g} in {dtype})"
    large = [_numbers(LARGE[device.type], shift).to(device, dtype) for shift in (3, 4)]
    digests = {int(checksum(large[0] @ large[1]))}
    started = time.perf_counter()
    for _ in range(REPEATS):
        product = large[0] @ large[1]
    digests.add(int(checksum(product)))  # waits for the device
    seconds = (time.perf_counter() - started) / REPEATS
    mine.rates["matmul"] = 2 * LARGE[device.type] ** 3 / seconds / 1e12
    mine.digest = min(digests)
    if len(digests) > 1:
        mine.retry = f"{mine.device} gives another product each time"


def _numbers(rows: int, shift: int) -> torch.Tensor:
    """Make a square matrix of FP32 in [-0.5, 0.5), the same everywhere and without a random generator."""
    count = torch.arange(rows * rows, dtype=torch.int64) + shift * rows * rows
    return ((count * 2_654_435_761 % 2**24).float() / 2**24 - 0.5).view(rows, rows)


def _test_network(mine: BurnInResult, group: Group, device: torch.device) -> None:
    if group.host is None:
        return
    # Rank r sends r + 1 everywhere, so that the sums and places of all are known.
    sent = torch.full((SENT_NUMBERS[device.type],), float(group.rank + 1), device=device)
    received = torch.empty(group.size, len(sent), device=device)
    dist.all_reduce(sent[:1].clone())  # makes the connections
    started = time.perf_counter()
    total = sent.clone()
    dist.all_reduce(total)
    ok = bool((total == group.size * (group.size + 1) / 2).all())  # waits for the device
    middle = time.perf_counter()
    dist.all_gather(list(received.unbind()), sent)
    expected = torch.arange(1, group.size + 1, device=device, dtype=torch.float32)[:, None]
    ok = bool((received == expected).all()) and ok
    ended = time.perf_counter()
    # A ring sends each number 2 (n - 1) / n times, and (n - 1) times for a gather.
    # Source: NVIDIA, nccl-tests, doc/PERFORMANCE.md, bus bandwidth.
    share = (group.size - 1) / group.size
    mine.rates["all-reduce"] = 2 * share * 4 * len(sent) / (middle - started) / 1e9
    mine.rates["all-gather"] = share * 4 * received.numel() / (ended - middle) / 1e9
    if not ok:
        mine.retry = "sums or numbers of other processes arrive wrong; the network or a device is broken"


def _test_disk(mine: BurnInResult, folder: Path, test: str, key: str) -> None:
    path = folder / f"{PROBE}-{mine.rank}"
    content = bytes(range(256)) * (DISK_BYTES // 256)
    started = time.perf_counter()
    try:
        if test == "local disk":
            folder.mkdir(parents=True, exist_ok=True)  # as its first checkpoint does
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        mine.rates[test] = DISK_BYTES / (time.perf_counter() - started) / 1e6
        if path.read_bytes() != content:
            mine.retry = f"{folder}: what is read is not what was written; the disk is broken"
    except OSError as error:
        mine.wrong = f"{folder}: cannot be written ({error}); free space there or choose another {key}"
    finally:
        with contextlib.suppress(OSError):  # told above
            path.unlink(missing_ok=True)


def _test_archive(mine: BurnInResult, archive: str) -> None:
    place = join(archive, f"{PROBE}-{mine.host}-{mine.rank}")
    uri, content = join(place, MANIFEST), b"anadil"
    try:
        store = storage.store(archive)
        store.write(uri, content)
        if store.read(uri) != content:
            mine.retry = f"{archive}: what is read is not what was written"
        store.remove_directory(place)
    except RetryableError as error:
        mine.retry = f"pretrain.copies.archive: {error}"
    except (AnadilError, OSError) as error:
        mine.wrong = f"pretrain.copies.archive: {error}"
