"""One flipped bit in the newest checkpoint of a real checkpoint: it has to be noticed before it is loaded.

python benchmarks/faults/flips.py [--flips 200] [--seed 0]

The checkpoint is that of a run of two processes, killed after its third checkpoint. Each
file of the newest one is as likely as another, the manifest too, and each of its bits.
"""

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from forked import EVERY, Start, make_inputs, start

from anadil.artifacts import artifact
from anadil.model.process_group import Group
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.folder import CheckpointFolder

CHECKPOINTS = 3


def checkpoint_of(folder: Path) -> Path:
    """The newest checkpoint of a killed run."""
    make_inputs(folder)
    step = CHECKPOINTS * EVERY + 3
    fault = {"kill": {"step": step, "rank": 1}}
    begun: Start = start(folder, "run", environment={"ANADIL_INJECT": json.dumps(fault)})
    assert begun.ended(), "the run neither ended nor died"
    return directory.path_of(
        folder / "run.work/checkpoints", directory.steps(folder / "run.work/checkpoints")[0]
    )


def flip(file: Path, bit: int) -> None:
    """Change one bit of a file; twice changes nothing."""
    with file.open("r+b") as changed:
        changed.seek(bit // 8)
        byte = changed.read(1)[0]
        changed.seek(bit // 8)
        changed.write(bytes([byte ^ 1 << bit % 8]))


def main() -> int:
    """Print the figures as JSON; 1 where a flip went unnoticed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # one for each flip
    folder = Path(tempfile.mkdtemp(prefix="anadil-flips-"))
    newest = checkpoint_of(folder)
    manifest = directory.manifest_of(newest)
    checkpoints = CheckpointFolder(newest.parent, Group(), manifest.origin, keep=CHECKPOINTS)
    before = next(step for step in directory.steps(newest.parent) if step < manifest.records["step"])
    files = sorted(path for path in newest.iterdir() if path.is_file())
    sizes = [path.stat().st_size for path in files]
    numbers = np.random.default_rng(options.seed)
    noticed, by_file, seconds = 0, Counter[str](), 0.0
    for _ in range(options.flips):
        number = int(numbers.integers(len(files)))
        bit = int(numbers.integers(8 * sizes[number]))
        flip(files[number], bit)
        began = time.perf_counter()
        checkpoint = checkpoints.newest()
        seconds += time.perf_counter() - began
        aside = newest.with_name(newest.name + directory.DAMAGED)
        noticed += checkpoint is not None and checkpoint.state.step == before and aside.is_dir()
        by_file[files[number].name] += 1
        if aside.is_dir():
            aside.rename(newest)
        flip(files[number], bit)
    artifact.verify_files(newest, manifest, str(newest))
    checkpoints.close()
    shutil.rmtree(folder)
    figures = {
        "flips": options.flips,
        "noticed, and the checkpoint before taken": noticed,
        "bytes": sum(sizes),
        "by file": dict(by_file.most_common()),
        "ms to find the newest sound one": round(1e3 * seconds / options.flips, 1),
    }
    print(json.dumps(figures, indent=1))
    return int(noticed < options.flips)


if __name__ == "__main__":
    sys.exit(main())
