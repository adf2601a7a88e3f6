"""How cleaning grows: memory and CPU with the input, processes, kills, weekly additions, millions of signatures.

    ANADIL_DATA=... python benchmarks/clean/scale.py [--documents 10000] [--only curve workers kills since signatures]

One process of the stage at a time, but for `workers`. Ends with 1 if something is missed.
"""

import argparse
import hashlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import inputs
import measure
from measure import Cost

CURVE = (1, 4, 16)
MAX_MEMORY_GROWTH, MAX_CPU_GROWTH = 1.15, 1.10
MIN_SPEEDUP = 1.8
MAX_LAST_WEEK = 1.3
NUM_KILLS = 10
NUM_SIGNATURES = 5_000_000
MAX_SIGNATURE_BYTES = 2 * 2**30
SMALL_SHARD = 1 << 20
"""Bytes of the shards that are killed: many of them in a small input."""


def clean(
    raw: Path, out: Path, log: Path, is_time_to_kill: Callable[[], bool] | None = None, **settings: object
) -> Cost:
    """Run the stage on a file."""
    named = {"workers": 1} | {
        key: value if isinstance(value, int) else str(value) for key, value in settings.items()
    }
    # The built-in recipe has sources, which `clean.since` refuses, so this one stands alone.
    recipe = out.with_name(f"{out.name}.yaml")
    recipe.write_text(
        json.dumps({"language": "az", "tracking": {"uri": "off"}, "clean": named}), encoding="utf-8"
    )
    options = ["--recipe", str(recipe), "--raw", str(raw), "--out", str(out)]
    command = [sys.executable, "-m", "anadil", "clean", *options]
    return measure.run(command, log, is_time_to_kill=is_time_to_kill)


def digests(corpus: Path) -> dict[str, str]:
    """Digest of every file of the corpus that holds text."""
    return {
        path.relative_to(corpus).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in ("train", "heldout", "index", "rejected")
        for path in sorted((corpus / part).rglob("*"))
        if path.is_file()
    }


def curve(work: Path, count: int) -> bool:
    """Memory and CPU at 1, 4 and 16 times the input."""
    print(
        "| input | documents | MB | CPU s | CPU ms a document, without start | peak MiB |\n|---|---:|---:|---:|---:|---:|"
    )
    start = clean(inputs.write_jsonl(work / "few.jsonl", "az", 40), work / "few", work / "log").cpu_s
    per_document, peaks = [], []
    for factor in CURVE:
        raw = inputs.write_jsonl(work / f"{factor}.jsonl", "az", count * factor)
        cost = clean(raw, work / f"corpus-{factor}", work / "log")
        per_document.append((cost.cpu_s - start) / (count * factor))
        peaks.append(cost.peak_bytes)
        print(
            f"| {factor}x | {count * factor:,} | {raw.stat().st_size / 1e6:.0f} | {cost.cpu_s:.1f} "
            f"| {per_document[-1] * 1000:.2f} | {peaks[-1] / 2**20:,.0f} |",
            flush=True,
        )
    memory, cpu = peaks[-1] / peaks[0], per_document[-1] / per_document[0]
    print(
        f"\nMemory at 16x over 1x: {memory:.2f} (at most {MAX_MEMORY_GROWTH}); CPU of a document: {cpu:.2f} (at most {MAX_CPU_GROWTH}).\n"
    )
    return memory <= MAX_MEMORY_GROWTH and cpu <= MAX_CPU_GROWTH


def workers(work: Path, count: int) -> bool:
    """Two processes over one, on the clock, and whether they write the same."""
    raw = inputs.write_jsonl(work / "raw.jsonl", "az", 4 * count)
    costs = {n: clean(raw, work / f"corpus-{n}", work / "log", workers=n) for n in (1, 2)}
    speedup = costs[1].wall_s / costs[2].wall_s
    is_same = digests(work / "corpus-1") == digests(work / "corpus-2")
    print(
        f"2 processes over 1: {costs[1].wall_s:.1f} s / {costs[2].wall_s:.1f} s = {speedup:.2f} (at least {MIN_SPEEDUP}; "
        f"CPU {costs[1].cpu_s:.1f} s and {costs[2].cpu_s:.1f} s); the same bytes: {is_same}.\n",
        flush=True,
    )
    return speedup >= MIN_SPEEDUP and is_same


def kills(work: Path, count: int) -> bool:
    """Kill a run at ten random points, and compare with one that nobody killed."""
    raw = inputs.write_jsonl(work / "raw.jsonl", "az", 2 * count)
    whole = clean(raw, work / "whole", work / "log", shard_bytes=SMALL_SHARD)
    num_shards = math.ceil(raw.stat().st_size / SMALL_SHARD)
    chance = inputs.seeded(0)
    # The last ones may be after all shards, while duplicates are found or files written.
    points = sorted(chance.randint(0, num_shards) for _ in range(NUM_KILLS))
    done: dict[str, int] = {}
    num_again = in_vain = num_killed = 0
    for point in points:
        wait_s = chance.uniform(0, whole.wall_s / num_shards)
        cost = clean(raw, work / "killed", work / "log", _when(work, point, wait_s), shard_bytes=SMALL_SHARD)
        num_killed += cost.exit_code != 0
        found = _shards_done(work)
        begun = sum(path.is_dir() for path in (work / "killed.work").glob("clean/*/shard-*.partial"))
        num_again += sum(found.get(path) != made for path, made in done.items())
        in_vain = max(in_vain, begun)
        print(f"killed with {len(found)} of {num_shards} shards done, {begun} begun", flush=True)
        done = found
    clean(raw, work / "killed", work / "log", shard_bytes=SMALL_SHARD)
    is_same = digests(work / "whole") == digests(work / "killed")
    print(
        f"\n{num_killed} kills: the same bytes: {is_same}; shards that were done and done again: {num_again}; "
        f"begun, and so done again: at most {in_vain} a kill.\n",
        flush=True,
    )
    return is_same and num_again == 0 and in_vain <= 1


def _shards_done(work: Path) -> dict[str, int]:
    """Markers of shards, and when each was written."""
    markers = (work / "killed.work").glob("clean/*/shard-*/manifest.json")
    return {str(path): path.stat().st_mtime_ns for path in markers if ".partial" not in str(path)}


def _when(work: Path, num_done: int, wait_s: float) -> Callable[[], bool]:
    """Says when so many shards are done, and some time more."""
    since: list[float] = []

    def is_time() -> bool:
        if not since and len(_shards_done(work)) >= num_done and (work / "killed.work").exists():
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] >= wait_s

    return is_time


def since(work: Path, count: int) -> bool:
    """Four equal weekly additions; the last over a quarter of a run on all of it."""
    weeks = [inputs.write_jsonl(work / f"week-{n}.jsonl", "az", count, seed=n) for n in range(4)]
    with (work / "all.jsonl").open("wb") as joined:
        for week in weeks:
            joined.write(week.read_bytes())
    whole = clean(work / "all.jsonl", work / "all", work / "log")
    costs: list[float] = []
    for number, week in enumerate(weeks):
        earlier: dict[str, object] = {"since": work / f"corpus-{number - 1}"} if number else {}
        costs.append(clean(week, work / f"corpus-{number}", work / "log", None, **earlier).cpu_s)
    start = clean(inputs.write_jsonl(work / "few.jsonl", "az", 40), work / "few", work / "log").cpu_s
    ratio, work_ratio = costs[-1] / (whole.cpu_s / 4), (costs[-1] - start) / ((whole.cpu_s - start) / 4)
    print(
        f"CPU of four additions of {count:,} documents: {', '.join(f'{each:.1f}' for each in costs)} s; of all at once "
        f"{whole.cpu_s:.1f} s; the fourth over its share: {ratio:.2f}, without the {start:.1f} s of a start {work_ratio:.2f} (at most {MAX_LAST_WEEK}).\n",
        flush=True,
    )
    return work_ratio <= MAX_LAST_WEEK


def signatures(work: Path, count: int) -> bool:
    """Five million signatures to clusters."""
    script = str(Path(__file__).with_name("signatures.py"))
    total = str(min(NUM_SIGNATURES, 1000 * count))
    measure.run([sys.executable, script, "make", str(work / "shards"), total], work / "log")
    cost = measure.run([sys.executable, script, "find", str(work / "shards"), total], work / "log")
    print(
        f"{int(total):,} signatures of 14 bands: {cost.cpu_s:.1f} CPU s, {cost.peak_bytes / 2**20:,.0f} MiB "
        f"(at most {MAX_SIGNATURE_BYTES / 2**20:,.0f}); {cost.output}.\n",
        flush=True,
    )
    return cost.peak_bytes <= MAX_SIGNATURE_BYTES


PARTS: dict[str, Callable[[Path, int], bool]] = {
    "curve": curve, "workers": workers, "kills": kills, "since": since, "signatures": signatures,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts and print what they find."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=10_000, help="of the smallest input; 2.4 kB each")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args(argv)
    print(f"{measure.machine()}, Python {sys.version.split()[0]}\n", flush=True)
    figures = {}
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="clean-") as folder:
            figures[name] = PARTS[name](Path(folder), options.documents)
    print(json.dumps(figures))
    return 0 if all(figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
