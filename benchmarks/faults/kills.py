"""SIGKILL at random moments of a run, from its start to its end; it has to go on to the same losses.

python benchmarks/faults/kills.py [--kills 200] [--minutes 25] [--seed 0] [--steps 60] [--layouts copies shards]

Each start of a run is killed, all its processes at once, at a moment drawn evenly from the life of
an uninterrupted run; a start that ends before its moment is not, and the run is compared: every loss
and every byte of the weights. The next run begins in a fresh directory.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forked import EVERY, STEPS, Start, losses, make_inputs, start

WEIGHTS = "model.safetensors"
JOURNAL = "training.jsonl"
STUCK_S = 240.0
"""A start that runs so much longer than an uninterrupted run hangs. Other programs run too."""
PARTS = ("before the first step", "training", "training, checkpoint half written", "after the last step")


@dataclass(slots=True)
class KillStats:
    """Counts over all runs of all layouts."""

    kills: Counter[str] = field(default_factory=Counter)
    """By what the run was doing."""
    survived: int = 0
    """Kills of runs that went on to the same losses and weights."""
    runs: int = 0
    same: int = 0
    most_kills: int = 0
    lost: list[int] = field(default_factory=list)
    """Optimizer steps done again after each kill."""
    recovered_s: list[float] = field(default_factory=list)
    """From a start after a kill to its first optimizer step."""
    time: Counter[str] = field(default_factory=Counter)
    """Seconds of all runs by cause, as `training.json` says."""
    wrong: list[str] = field(default_factory=list)


class Layout:
    """One way to share the model, and its uninterrupted run."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        begun = start(folder, f"{name}-whole", self.settings("whole"))
        if not begun.ended(STUCK_S) or any(begun.exit_codes()):
            begun.kill()
            sys.exit(f"{name}: the uninterrupted run failed\n{begun.logs[0].read_text()[-2000:]}")
        self.life_s = time.time() - begun.at
        self.losses = losses(folder / f"{name}-whole" / JOURNAL)
        self.weights = (folder / f"{name}-whole" / WEIGHTS).read_bytes()

    def settings(self, run: str) -> list[str]:
        """Recipe keys of a run: a copy each and one tier, or half the model each and three tiers."""
        if self.name == "copies":
            return []
        return [
            "pretrain.parallelism.shard=2",
            "pretrain.copies.local_every=2",
            f"pretrain.copies.local_path={self.folder / f'{self.name}-{run}.disk'}",
            f"pretrain.copies.archive={self.folder / f'{self.name}-{run}.archive'}",
        ]


class Run:
    """One run of a layout, killed until it gets to its end."""

    def __init__(self, layout: Layout, number: int, stats: KillStats) -> None:
        self.layout, self.stats = layout, stats
        self.number = f"{number:03}"
        self.name = f"{layout.name}-{self.number}"
        self.work = layout.folder / f"{self.name}.work"
        self.kills = 0
        self.has_ended = False

    def go_on(self, after_s: float | None) -> None:
        """Start it, and kill it `after_s` seconds later if it still runs then; None never kills."""
        saved = self._saved()
        begun = start(self.layout.folder, self.name, self.layout.settings(self.number))
        if begun.ended(STUCK_S if after_s is None else after_s):
            self.has_ended = True
        else:
            begun.kill()
            if after_s is None:
                self._wrong(begun, "hangs")
        self._check_start(begun, saved)
        if not self.has_ended:
            self._count_kill()
        elif begun.exit_codes() != [0, 0] and not (self._is_done() and 0 in begun.exit_codes()):
            self._wrong(begun, f"exit codes {begun.exit_codes()}")

    def compare(self) -> None:
        """Losses and weights at its end, beside those of the uninterrupted run."""
        stats, out = self.stats, self.layout.folder / self.name
        same = self._is_done() and losses(out / JOURNAL) == self.layout.losses
        same = same and (out / WEIGHTS).read_bytes() == self.layout.weights
        stats.runs += 1
        stats.same += same
        stats.survived += self.kills * same
        stats.most_kills = max(stats.most_kills, self.kills)
        if not same:
            stats.wrong.append(f"{self.name}: ended with other losses or weights")
            return
        causes = json.loads((out / "training.json").read_text())["time"]["causes"]
        stats.time.update({cause: spent["seconds"] for cause, spent in causes.items()})
        for path in self.layout.folder.glob(f"{self.name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _check_start(self, begun: Start, saved: int) -> None:
        """It went on from what was saved last, and each step has the loss of the uninterrupted run."""
        said = begun.said()
        texts = [line["msg"] for line in said]
        steps = [line for line in said if line["msg"].startswith("step=")]
        resumed = [text for text in texts if text.startswith("resuming after step ")]
        if steps and not self._is_done():
            first_step = int(resumed[0].rpartition(" ")[2]) if resumed else 0
            if first_step != saved:
                self._wrong(begun, f"resumed after step {first_step}, but step {saved} was saved")
            if self.kills:
                began = datetime.fromisoformat(steps[0]["ts"]).timestamp()
                self.stats.recovered_s.append(began - begun.at)
        here = losses(self.work / JOURNAL)
        if any(self.layout.losses[step] != loss for step, loss in here.items()):
            self._wrong(begun, "a step has another loss")
        if list(self.layout.folder.glob(f"{self.name}*/**/*.damaged")):
            self._wrong(begun, "a checkpoint is torn")

    def _count_kill(self) -> None:
        reached = max(losses(self.work / JOURNAL), default=0)
        half = list(self.work.glob("checkpoints/*.partial"))
        part = (
            PARTS[0]
            if not reached
            else PARTS[3]
            if reached == max(self.layout.losses)
            else PARTS[2]
            if half
            else PARTS[1]
        )
        self.kills += 1
        self.stats.kills[part] += 1
        self.stats.lost.append(max(0, reached - self._saved()))

    def _saved(self) -> int:
        """The newest step that every process has, on the shared disk or on its own."""
        durable = _steps(self.work / "checkpoints")
        own = [_steps(place) for place in self.layout.folder.glob(f"{self.name}.disk/*/rank-*")]
        common = set.intersection(*own) if len(own) == 2 else set()
        return max(durable | common, default=0)

    def _is_done(self) -> bool:
        return (self.layout.folder / self.name / "manifest.json").is_file()

    def _wrong(self, begun: Start, text: str) -> None:
        tail = "".join(f"\n{log.read_text()[-1500:]}" for log in begun.logs)
        self.stats.wrong.append(f"{self.name}, after {self.kills} kills: {text}{tail}")


def _steps(place: Path) -> set[int]:
    manifests = place.glob("step-*/manifest.json")
    return {int(path.parent.name[5:]) for path in manifests if path.parent.name[5:].isdecimal()}


def campaign(
    folder: Path, names: Sequence[str], kills: int, seconds: float, seed: int, steps: int
) -> KillStats:
    """Kill runs of the layouts in turn, until there were enough kills or the time is over."""
    make_inputs(folder, steps)
    stats, numbers = KillStats(), np.random.default_rng(seed)
    layouts = [Layout(folder, name) for name in names]
    for layout in layouts:
        print(f"{layout.name}: uninterrupted {layout.life_s:.1f} s", file=sys.stderr)
    number, deadline = 0, time.monotonic() + seconds
    while stats.kills.total() < kills and time.monotonic() < deadline and not stats.wrong:
        run = Run(layouts[number % len(layouts)], number, stats)
        while not run.has_ended and not stats.wrong:
            enough = stats.kills.total() >= kills or time.monotonic() > deadline
            run.go_on(None if enough else float(numbers.uniform(0, run.layout.life_s)))
        if not stats.wrong:
            run.compare()
        number += 1
        print(f"{run.name}: {run.kills} kills, {stats.kills.total()} in all", file=sys.stderr)
    return stats


def figures(stats: KillStats) -> dict[str, Any]:
    """Figures to print."""
    wall = sum(stats.time.values())

    def quantile(values: Sequence[float], share: float) -> float:
        return round(float(np.quantile(values, share)), 2) if values else 0.0

    return {
        "kills": stats.kills.total(),
        "survived": stats.survived,
        "runs": stats.runs,
        "bit-equal runs": stats.same,
        "most kills of a run": stats.most_kills,
        "kills by moment": {part: stats.kills[part] for part in PARTS},
        "steps lost": {"p50": quantile(stats.lost, 0.5), "max": max(stats.lost, default=0)},
        "checkpoint every": EVERY,
        "recovery s": {"p50": quantile(stats.recovered_s, 0.5), "p95": quantile(stats.recovered_s, 0.95)},
        "goodput": round(stats.time["step"] / wall, 4) if wall else 0.0,
        "seconds between kills": round(wall / max(1, stats.kills.total()), 2),
        "share by cause": {cause: round(s / wall, 4) for cause, s in stats.time.most_common()},
    }


def main() -> int:
    """Print the figures as JSON; 1 where a run was not the same."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a run")
    parser.add_argument("--layouts", nargs="+", choices=("copies", "shards"), default=("copies", "shards"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="anadil-kills-"))
    stats = campaign(
        folder, options.layouts, options.kills, 60 * options.minutes, options.seed, options.steps
    )
    print(json.dumps(figures(stats), indent=1))
    for text in stats.wrong:
        print(f"WRONG {text}\nkept: {folder}", file=sys.stderr)
    if not stats.wrong:
        shutil.rmtree(folder)
    return int(bool(stats.wrong) or stats.survived < stats.kills.total())


if __name__ == "__main__":
    sys.exit(main())
