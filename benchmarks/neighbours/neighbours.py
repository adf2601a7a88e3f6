"""Cost of training alone and beside busy processes, by how its threads wait for each other.

python benchmarks/neighbours/neighbours.py [--steps 30] [--repeat 5] [--busy 0 2] [--settings libgomp passive ...]

Each start is `anadil pretrain` of the recipe `smoke`, as a user would start it, with settings of the OpenMP
library in its environment. The settings take turns, so that what else the machine does falls on all of them. Medians
are printed, and how busy the machine was before the first start.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TEXT = ("--set", "clean.inputs=['builtin:az/prose.jsonl', 'builtin:az/generated.jsonl']")
"""One text instead of the recipe's sources: there is one corpus to give."""
SETTINGS: dict[str, dict[str, str]] = {
    # libgomp's default. Source: GCC, libgomp/env.c.
    "libgomp": {"GOMP_SPINCOUNT": "300000"},
    # anadil's default.
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
OWN = ("OMP_", "GOMP_", "KMP_")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 2], help="processes beside it")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    options = parser.parse_args(argv)
    print(f"{os.cpu_count()} CPUs, load before the first start: {os.getloadavg()[0]:.1f}")
    times: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="neighbours-") as name:
        folder = Path(name)
        inputs = prepared(folder)
        for turn in range(options.repeat):
            for num_busy in options.busy:
                for setting in options.settings:
                    with busy(num_busy):
                        took = start(inputs, folder / "model", SETTINGS[setting], options.steps)
                    times[num_busy, setting].append(took)
                    line = (
                        f"turn {turn + 1}, {num_busy} busy, {setting}: {took[0]:.1f} s, {took[1]:.1f} CPU s"
                    )
                    print(line, file=sys.stderr, flush=True)
    show(times)
    return 0


def show(times_by_start: dict[tuple[int, str], list[tuple[float, float]]]) -> None:
    """Medians as a table, with the fastest and the slowest start."""
    print("\n| busy processes beside it | threads wait | s | CPU s |\n|---:|---|---:|---:|")
    for (num_busy, setting), times in times_by_start.items():
        columns = zip(*times, strict=True)
        cells = [f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in columns]
        print(f"| {num_busy} | {setting} | {' | '.join(cells)} |")


def prepared(folder: Path) -> list[str]:
    """Corpus and tokenizer of the recipe, and the base model; what a start reads."""
    work = folder / "work"
    command = [sys.executable, "-m", "anadil", "run", *TEXT, "--until", "tokenizer", "--work", str(work)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    [corpus] = (path.parent for path in work.glob("corpus/*/manifest.json"))
    [tokenizer] = (path.parent for path in work.glob("tokenizer/*/manifest.json"))
    inputs = ["--corpus", str(corpus), "--tokenizer", str(tokenizer)]
    os.environ["ANADIL_CACHE"] = str(folder / "cache")
    start(inputs, folder / "warm", SETTINGS["passive"], 1)
    return inputs


def start(inputs: list[str], out: Path, settings: dict[str, str], steps: int) -> tuple[float, float]:
    """Seconds and CPU seconds of one start of pretrain."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(OWN)} | settings
    phases = f"pretrain.phases=[{{trains: all, steps: {steps}, lr: 0.0024}}]"
    command = [
        sys.executable,
        "-m",
        "anadil",
        "pretrain",
        "--recipe",
        "smoke",
        *TEXT,
        *inputs,
        "--out",
        str(out),
    ]
    began, before = time.monotonic(), cpu_seconds()
    subprocess.run(
        [*command, "--set", phases, "--set", "tracking.uri=off"],
        env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    took = time.monotonic() - began, cpu_seconds() - before
    subprocess.run(["rm", "-rf", str(out), f"{out}.work"], check=True)  # noqa: S607
    return took


def cpu_seconds() -> float:
    """CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Processes that take all the CPU they get, beside the block."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL)
        for _ in range(number)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
