"""CPU time until the first batch of an artifact with many shards, and memory at 16 times the tokens.

python benchmarks/encode/shards.py [--shards 100000] [--folder DIR]

The simulated shards are small, since their number is what a start depends on. Each figure is of a process of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.tokens.packing import TokenStream, pack
from anadil.tokens.tensor_file import TensorWriter
from anadil.tokens.tokens_file import BlockFacts, ShardFacts, TokensFacts

LENGTH = 2_048
BATCH = 64


def write_artifact(folder: Path, shards: int, tokens: int, documents: int) -> None:
    """Write shards of equal size, in one block, and their manifest."""
    for name in ("train", "blocks"):
        (folder / name).mkdir(parents=True)
    size = tokens // documents
    starts = np.arange(documents + 1) * size
    facts = []
    for number in range(shards):
        file = f"train/part-{number:05}.safetensors"
        with TensorWriter(folder / file) as out:
            out.write("ids", "I32", np.full(size * documents, number, dtype=np.int32))
            out.write("starts", "I64", starts)
            out.write("bytes", "I32", np.full(documents, 3 * size))
        facts.append(
            ShardFacts(
                file=file, documents=documents, tokens=size * documents, bytes=3 * size * documents,
                crc32=out.table_crc,
            )
        )  # fmt: skip
    whole = np.arange(shards * documents + 1) * size
    packed = pack(TokenStream(ids=np.empty(0, dtype=np.int32), starts=whole, digest=""), LENGTH)
    with TensorWriter(folder / "blocks/block-00000.safetensors") as out:
        out.write("pieces", "I64", packed.pieces[:])
        out.write("rows", "I64", packed.rows[:])
    block = BlockFacts(
        file="blocks/block-00000.safetensors", first_shard=0, num_shards=shards, pieces=len(packed.pieces),
        sequences=packed.num_sequences, targets=packed.num_targets, positions=packed.num_positions,
        crc32=out.table_crc,
    )  # fmt: skip
    TokensFacts(
        language="az", corpus="c", tokenizer="t", begin=1, end=2, bos=None, vocabulary=100_000,
        sequence_length=LENGTH, stream="d", documents=shards * documents, tokens=int(whole[-1]),
        bytes=3 * int(whole[-1]), sequences=packed.num_sequences, targets=packed.num_targets, left_out={},
        sample=("", ()), train=tuple(facts), heldout=(), blocks=(block,),
    ).write(folder)  # fmt: skip
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.*"))}
    # A digest of each of 100,000 files is the work of those who write them.
    entries = {name: {"bytes": path.stat().st_size, "sha256": "0" * 64} for name, path in files.items()}
    entries["tokens.json"] = artifact.file_entry(folder / "tokens.json")
    manifest = Manifest(kind="tokens", key="k", origin={}, files=entries).sealed()  # type: ignore[arg-type]
    (folder / "manifest.json").write_text(json.dumps(manifest.fields()), encoding="utf-8")


READ = """
import json, resource, sys, time
from pathlib import Path
import numpy as np
from anadil.pretrain.data.batch import batch_of
from anadil.pretrain.data.order import sequences_of_step
from anadil.artifacts import artifact
from anadil.tokens.stored_tokens import open_tokens
folder, steps = sys.argv[1], int(sys.argv[2])
started = time.process_time()
tokens = open_tokens(folder, artifact.finished_manifest(folder, "tokens"))
packed = tokens.packed
def batch(step):
    numbers = sequences_of_step(step, batch_size=64, blocks=packed.blocks, seed=0)
    return batch_of(packed, numbers)
batch(0)
first = time.process_time() - started
count = steps or packed.num_sequences // 64
started = time.process_time()
for step in range(count):
    batch(step)
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) // 1024
print(json.dumps({"first": first, "batch": (time.process_time() - started) / max(1, count), "steps": count,
    "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "anonymous": anonymous()}))
"""


def read(folder: Path, steps: int) -> dict[str, float]:
    """Figures of a process that reads the first batch, then `steps` batches; 0: an epoch."""
    command = [sys.executable, "-c", READ, str(folder), str(steps)]
    figures: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=100_000, help="shards of the first artifact")
    parser.add_argument("--folder", type=Path, help="directory for the files (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        started = time.perf_counter()
        write_artifact(Path(place, "many"), options.shards, 512, 4)
        print(f"{options.shards:,} shards written in {time.perf_counter() - started:.0f} s")
        figures = read(Path(place, "many"), 20)
        print(
            f"first batch of {BATCH} sequences: {figures['first']:.2f} CPU seconds; later ones "
            f"{1e3 * figures['batch']:.0f} ms; most memory {figures['rss']:,.0f} MiB"
        )
        for name, shards in (("once", 4), ("16 times", 64)):
            write_artifact(Path(place, name), shards, 4_000_000, 2_000)
            figures = read(Path(place, name), 0)
            print(
                f"an epoch of {shards * 4} M tokens ({name}): most memory {figures['rss']:,.0f} MiB, "
                f"{1e3 * figures['batch']:.1f} ms a batch"
            )
    resource.getrusage(resource.RUSAGE_SELF)


if __name__ == "__main__":
    main()
