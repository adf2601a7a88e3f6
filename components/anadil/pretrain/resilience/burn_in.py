"""Tests of every device, of the network and of the disks, before the first step.

A node with a broken device, link or disk spoils days of all others; seconds at the start find it.
"""

import contextlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Literal

import torch
from torch import distributed as dist

from anadil.artifacts import storage
from anadil.artifacts.uri import MANIFEST, join
from anadil.core.errors import AnadilError, IntegrityError, PreflightError, RetryableError
from anadil.core.format import counted
from anadil.model.process_group import Group
from anadil.pretrain.callback import Callback
from anadil.pretrain.parallel.fsdp import local_part
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.state import Step

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
    "matmul": "TFLOP/s", "all-reduce": "GB/s", "all-gather": "GB/s", "disk": "MB/s", "local disk": "MB/s",
}  # fmt: skip


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
    group: Group, device: torch.device, dtype: torch.dtype, folder: Path, archive: str | None = None,
    local: Path | None = None,
) -> list[BurnInResult]:  # fmt: skip
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


COLUMNS = 4_096
"""Numbers that are added up side by side, each with a weight of its own, so that a swap shows too."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by bytes of an element."""


class ReplicaCheck(Callback):
    """Compares the copies of the parameters every `pretrain.faults.replica_check_every` steps.

    Copies that get the same gradients stay equal in every bit. A copy that differs was computed by a broken device, which
    no loss or norm shows at once.
    """

    def __init__(self, invalidate_after: Callable[[int], None]) -> None:
        """Call `invalidate_after` with the last step whose copies were equal, where they differ now."""
        self._invalidate_after = invalidate_after

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Compare, where it is due."""
        run = self.training
        done, every = run.state.step, run.job.recipe.pretrain.faults.replica_check_every
        if not every or done % every:
            return
        try:
            check_replicas(
                run.trainer.tensors(moments=False), peers_of(run.trainer.net.mesh), run.group, step=done
            )
        except IntegrityError:
            # A start from a later checkpoint would give all replicas the same wrong weights.
            self._invalidate_after(done - every)
            raise


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return an int64 on the tensor's device that changes with any one bit.

    Words of 8 bytes are read as integers and summed modulo 2**64 in columns. The columns are summed
    with odd weights: an odd weight loses no difference. Flips of several bits may cancel by chance.
    """
    flat = local_part(tensor).contiguous().view(-1)
    if flat.data_ptr() % 8 or flat.storage_offset() * flat.element_size() % 8:
        flat = flat.clone()  # words of 8 bytes begin at a multiple of 8
    weights = _weights(flat.device)
    # Words, not elements: sums of int64 run at the speed of memory, those of int32 as int64 do not.
    in_words = flat.numel() // (8 // flat.element_size()) * (8 // flat.element_size())
    words = flat[:in_words].view(torch.int64)
    whole = words.numel() // COLUMNS * COLUMNS
    columns = words[:whole].view(-1, COLUMNS).sum(0)
    rest = words[whole:]
    last = flat[in_words:].view(INTEGERS[flat.element_size()]).to(torch.int64)
    return sum(
        ((part * weights[: len(part)]).sum() for part in (columns, rest, last)),
        torch.tensor(flat.numel(), device=flat.device),
    )


@lru_cache(maxsize=2)
def _weights(device: torch.device) -> torch.Tensor:
    numbers = torch.arange(1, COLUMNS + 1, dtype=torch.int64, device=device)
    # Knuth's multiplicative hash spreads them over 64 bits; the last bit makes them odd.
    return (numbers * -7046029254386353131) | 1


def peers_of(mesh: Mesh) -> list[list[int]]:
    """List the ranks that hold the same parameters, group by group; none where no two do."""
    if mesh.parameters is None or mesh.replicas == 1:
        return []
    # Dimensions pipeline, replicate, shard, tensor.
    ranks: torch.Tensor = mesh.parameters.mesh
    groups: list[list[int]] = ranks.movedim(1, -1).reshape(-1, mesh.replicas).tolist()
    return groups


def check_replicas(
    tensors: Mapping[str, torch.Tensor], peers: Sequence[Sequence[int]], group: Group, *, step: int
) -> None:
    """Compare all copies; every process calls it with its tensors and the groups of `peers_of`."""
    if not peers or group.host is None:
        return
    each = torch.stack([checksum(tensor) for tensor in tensors.values()])
    total = (each * _weights(each.device)[: len(each)]).sum() if len(each) <= COLUMNS else each.sum()
    mine = total.reshape(1).cpu()  # the only number that leaves the device
    all_totals = [torch.zeros_like(mine) for _ in range(group.size)]
    dist.all_gather(all_totals, mine, group=group.host)
    totals = [int(one.item()) for one in all_totals]
    if all(len({totals[rank] for rank in ranks}) == 1 for ranks in peers):
        return
    details: list[tuple[str, dict[str, int]]] = [("", {})] * group.size
    detail = (socket.gethostname(), dict(zip(tensors, each.tolist(), strict=True)))
    # Names and sums travel only when copies differ.
    dist.all_gather_object(details, detail, group=group.host)
    faults = [_fault(ranks, totals, details) for ranks in peers if len({totals[rank] for rank in ranks}) > 1]
    raise IntegrityError(
        f"silent corruption: after step {step} {'; '.join(faults)}. Take that node out of service (its GPU or "
        "memory is broken) and run the same command again; it resumes from a checkpoint that is older than the last "
        "comparison that found all copies equal"
    )


def _fault(ranks: Sequence[int], totals: Sequence[int], details: Sequence[tuple[str, dict[str, int]]]) -> str:
    """Describe how copies differ: the minority, or all of them where there is no majority."""
    usual, number = Counter(totals[rank] for rank in ranks).most_common(1)[0]
    has_majority = 2 * number > len(ranks)
    # Without a majority nobody knows which copy is right.
    odd = [rank for rank in ranks if totals[rank] != usual or not has_majority]
    sums = [details[rank][1] for rank in ranks]
    names = [name for name in sums[0] if len({one.get(name) for one in sums}) > 1]
    at = f"at {names[0]} ({len(names)} of {len(sums[0])} tensors)"
    shown = ", ".join(f"rank {rank} on {details[rank][0]}" for rank in odd)
    if has_majority:
        return f"the parameters of {shown} differ from the {number} other copies {at}"
    return f"the parameters of {shown} differ {at}, and none of them has a majority"
