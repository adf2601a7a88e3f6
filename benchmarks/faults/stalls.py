"""One process of two that is no number, stands still or is slow: what the run says, and how soon.

python benchmarks/faults/stalls.py

Each fault is that of ANADIL_INJECT on process 1, in the second phase.
"""

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from forked import STEPS, Start, losses, make_inputs, start

AT = 30
"""Step of the fault."""
HANG_AFTER_S = 3.0
SLOW_S, SLOW_STEPS = 0.2, 20


def begun_with(folder: Path, name: str, fault: Mapping[str, Any], settings: Sequence[str] = ()) -> Start:
    """A run with a fault in process 1."""
    faults = {kind: {"step": AT, "rank": 1, **more} for kind, more in fault.items()}
    return start(folder, name, settings, {"ANADIL_INJECT": json.dumps(faults)})


def at(begun: Start, words: str, rank: int = 0) -> tuple[float, str]:
    """Unix time and text of the first line of a process that holds some words; (0, "") without one."""
    for line in begun.said(rank):
        if words in line["msg"]:
            return datetime.fromisoformat(line["ts"]).timestamp(), line["msg"]
    return 0.0, ""


def not_a_number(folder: Path) -> dict[str, Any]:
    """All processes stop, or all go back and leave the batch out; a resume repeats neither."""
    stopped = begun_with(folder, "stop", {"nan": {}})
    assert stopped.ended()
    due, _ = at(stopped, "ANADIL_INJECT: nan in", rank=1)
    said, words = at(stopped, "the loss is nan")
    skipped = begun_with(folder, "skip", {"nan": {}}, ["pretrain.faults.on_anomaly=skip"])
    assert skipped.ended()
    done = losses(folder / "skip" / "training.jsonl")
    return {
        "stop: exit codes": stopped.exit_codes(),
        "stop: s from the fault to the message": round(said - due, 2),
        "stop: last step in the journal": max(losses(folder / "stop.work" / "training.jsonl")),
        "stop: message": words,
        "skip: exit codes": skipped.exit_codes(),
        "skip: steps done": len(done),
        "skip: all losses are numbers": all(loss == loss for loss in done.values()),  # noqa: PLR0124  NaN differs
        "skip: message": at(skipped, "without the batches since")[1],
    }


def stands_still(folder: Path) -> dict[str, Any]:
    """SIGSTOP: the other process names it and ends within the time allowed; a new start resumes."""
    settings = [f"pretrain.faults.hang_after_s={HANG_AFTER_S}"]
    begun = begun_with(folder, "hang", {"freeze": {}}, settings)
    due = 0.0
    while not due and not begun.ended(0.02):
        due, _ = at(begun, "ANADIL_INJECT: freeze in", rank=1)
    while begun.pids[0] not in begun.codes and time.time() < due + 60:
        begun.ended(0.02)
    ended = time.time()
    begun.kill()
    noticed, _ = at(begun, "hangs with the run")
    said, words = at(begun, "the run hangs")
    stacks = sorted(path.name for path in (folder / "hang.work").glob("hang-rank-?.txt"))
    again = start(folder, "hang", settings)
    assert again.ended()
    return {
        "hang_after_s": HANG_AFTER_S,
        "s from SIGSTOP to the stacks": round(noticed - due, 2),
        "s from SIGSTOP to the message": round(said - due, 2),
        "s from SIGSTOP to the end of the other": round(ended - due, 2),
        "exit codes": begun.exit_codes(),
        "stacks": stacks,
        "message": words,
        "started again": again.exit_codes(),
    }


def is_slow(folder: Path) -> dict[str, Any]:
    """Twenty steps that take longer on one process: it is named, and nobody is in a run without the fault."""
    fault = {"sleep": {"seconds": SLOW_S, "until": AT + SLOW_STEPS - 1}}
    begun = begun_with(folder, "slow", fault)
    assert begun.ended()
    clean = start(folder, "clean")
    assert clean.ended()
    return {
        "slow steps": [AT, AT + SLOW_STEPS - 1],
        "named": named(begun),
        "named without the fault": named(clean),
        "exit codes": begun.exit_codes(),
    }


def named(begun: Start) -> list[str]:
    """Lines of a run about slow processes, each with the step before it."""
    lines, last = [], ""
    for line in begun.said():
        if line["msg"].startswith("step="):
            last = line["msg"].partition(" ")[0]
        elif "the median of the processes" in line["msg"]:
            lines.append(f"after {last}: {line['msg'].partition(';')[0]}")
    return lines


def main() -> int:
    """Print what was found as JSON."""
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="anadil-stalls-"))
    make_inputs(folder)
    figures = {
        "not a number": not_a_number(folder),
        "stands still": stands_still(folder),
        "is slow": is_slow(folder),
    }
    print(json.dumps(figures, indent=1))
    shutil.rmtree(folder)
    stop = figures["not a number"]["stop: exit codes"]
    as_meant = (
        len(set(stop)) == 1
        and signal.SIGKILL not in stop
        and figures["not a number"]["skip: steps done"] == STEPS
    )
    as_meant = (
        as_meant and "rank 1" in figures["stands still"]["message"] and bool(figures["is slow"]["named"])
    )
    return int(not as_meant)


if __name__ == "__main__":
    sys.exit(main())
