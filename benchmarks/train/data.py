"""How fast text becomes tokens, and documents become sequences, on this machine.

python benchmarks/train/data.py --text 'DIR/*.jsonl' --tokenizer DIR [--documents 5000000] [--length 2048]

Ways of encoding the same text, then packing of document lengths drawn from that text.
"""

import argparse
import glob
import json
import resource
import time
from pathlib import Path

import numpy as np

from anadil.model.load import encode_texts, load_tokenizer
from anadil.pretrain.data.batch import batch_of
from anadil.pretrain.data.order import sequences_of_step
from anadil.text.encoder import Encoder
from anadil.tokens.packing import TokenStream, pack


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", required=True, help="glob of .jsonl files with a key `text`")
    parser.add_argument("--tokenizer", type=Path, required=True, help="Hugging Face tokenizer directory")
    parser.add_argument("--documents", type=int, default=5_000_000, help="documents to pack")
    parser.add_argument("--length", type=int, default=2_048, help="tokens of a sequence")
    options = parser.parse_args()
    names = sorted(glob.glob(options.text))  # noqa: PTH207  Path.glob takes no absolute pattern
    lines = [line for name in names for line in Path(name).read_text(encoding="utf-8").split("\n") if line]
    texts = [json.loads(line)["text"] for line in lines]
    sizes = encoding(texts, options.tokenizer)
    packing(sizes, options.documents, options.length)


def encoding(texts: list[str], tokenizer_dir: Path) -> list[int]:
    """Tokens of each text, with BOS and end of text."""
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    tokenizer = load_tokenizer(tokenizer_dir)
    backend = tokenizer.backend_tokenizer
    print(f"{len(texts):,} documents, {megabytes:.1f} MB of text")

    def say(name: str, started: tuple[float, float], num: int) -> None:
        wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
        children = f", {megabytes / cpu:.2f} MB and {num / cpu / 1e6:.2f}M tokens a CPU second" if cpu else ""
        print(f"{name}: {megabytes / wall:.2f} MB/s, {num / wall / 1e6:.2f}M tokens/s{children}")

    for size in (64, 1_000):
        started = (time.perf_counter(), time.process_time())
        num = sum(
            len(ids)
            for at in range(0, len(texts), size)
            for ids in encode_texts(tokenizer, texts[at : at + size])
        )
        say(f"encode_batch_fast, {size} documents a call", started, num)
    encoder = Encoder(backend)
    encoder.check(())
    started = (time.perf_counter(), time.process_time())
    lengths = [len(ids) for at in range(0, len(texts), 64) for ids in encoder.encode(texts[at : at + 64])]
    say("anadil's encoder", started, sum(lengths))
    return [size + 2 for size in lengths]


def packing(sizes: list[int], documents: int, length: int) -> None:
    """Pack real documents, then many of lengths drawn from theirs."""
    for name, drawn in (
        ("real", np.array(sizes)),
        ("drawn", np.random.default_rng(0).choice(np.array(sizes), documents)),
    ):
        starts = np.concatenate([[0], np.cumsum(drawn)])
        stream = TokenStream(ids=np.zeros(1, dtype=np.int32), starts=starts, digest="benchmark")
        started = time.perf_counter()
        packed = pack(stream, length)
        seconds = time.perf_counter() - started
        print(
            f"pack, {name}: {len(drawn):,} documents, {starts[-1] / 1e6:,.1f}M tokens, {len(packed.pieces):,} pieces "
            f"into {packed.num_sequences:,} sequences of {length:,} in {seconds:.2f} s, "
            f"{100 * packed.waste:.3f} % padding"
        )
    started = time.perf_counter()
    chosen = sequences_of_step(0, batch_size=224, blocks=packed.blocks, seed=0)
    print(f"order of an epoch: {time.perf_counter() - started:.3f} s")
    started = time.perf_counter()
    packed.targets_of(chosen)
    print(f"targets of a batch of 224: {1e3 * (time.perf_counter() - started):.2f} ms")
    ids = np.random.default_rng(0).integers(0, 1000, 10_000_000, dtype=np.int32)
    small = pack(
        TokenStream(ids=ids, starts=starts[: np.searchsorted(starts, len(ids))], digest="benchmark"), length
    )
    rows = np.arange(14)
    started = time.perf_counter()
    for _ in range(20):
        batch_of(small, rows)
    print(f"batch of 14 sequences: {1e3 * (time.perf_counter() - started) / 20:.2f} ms")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
