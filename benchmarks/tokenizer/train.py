"""Training from tables beside tokenizers and rustbpe: CPU seconds and memory of each, in a process of its own.

python -m venv peers && peers/bin/pip install -r benchmarks/tokenizer/peers.txt
ANADIL_DATA=... python benchmarks/tokenizer/train.py --peers peers/bin/python

All tools read the same lines and cut by Llama 3's pattern. `--large` adds the gigabyte, without peers.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1])]

from benchmarks.clean import measure  # noqa: E402  scripts are installed nowhere
from benchmarks.tokenizer import inputs  # noqa: E402

SIZE = 100_000
MB = 10**6


class Bench:
    """Runs the tools on one corpus, and prints a line of the table for each."""

    def __init__(self, folder: Path, data: Path, peers: str) -> None:
        self.folder, self.data, self.peers = folder, data, peers
        self.costs: dict[str, measure.Cost] = {}

    def corpus(self, name: str, num_bytes: int, languages: tuple[str, ...] = inputs.LANGUAGES) -> Path:
        path = self.folder / f"{name}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for text in inputs.documents(inputs.real_texts(self.data, languages), num_bytes):
                file.write(json.dumps(text, ensure_ascii=False) + "\n")
        return path

    def run(self, what: str, tool: str, corpus: Path, size: int = SIZE) -> None:
        python = self.peers if tool in ("library", "rustbpe") else sys.executable
        command = [python, str(HERE / "one.py"), tool, str(corpus), str(size), str(self.folder / "table")]
        cost = self.costs[what] = measure.run(command, self.folder / "log")
        print(
            f"| {what} | {int(cost.output):,} | {cost.cpu_s:.1f} | {cost.wall_s:.1f} | {cost.peak_bytes / MB:,.0f} |",
            flush=True,
        )

    def ratio(self, what: str, one: str, other: str, goal: float) -> None:
        ratio = self.costs[one].cpu_s / self.costs[other].cpu_s
        print(f"{what}: {ratio:.2f} (at most {goal})")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", required=True, help="Python of an environment with peers.txt")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument(
        "--large", action="store_true", help="count a gigabyte too, with one and two processes"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), Path(os.environ["ANADIL_DATA"]), options.peers)
        print(measure.machine())
        compare(bench, options.megabytes)
        if options.large:
            count_large(bench)


def compare(bench: Bench, megabytes: int) -> None:
    """Every tool on one corpus."""
    corpus = bench.corpus("mixed", megabytes * MB)
    bench.run("compile (once for each version)", "compile_kernels", corpus)
    print("| what | tokens or words | CPU s | clock s | peak MB |\n|---|---:|---:|---:|---:|")
    bench.run("tokenizers", "library", corpus)
    bench.run("rustbpe", "rustbpe", corpus)
    bench.run("anadil", "whole", corpus)
    bench.run("anadil: table", "count", corpus)
    bench.run("anadil: second size, half", "merge", corpus, SIZE // 2)
    bench.run("anadil: merges from the table", "merge", corpus)
    bench.run("anadil: extend from the table", "extend", corpus)
    names = ("ours", "library")
    ours, theirs = (
        {tuple(pair) for pair in json.loads((bench.folder / f"table.{name}").read_text())} for name in names
    )
    # Those of pretokens over 256 bytes, which we leave out, differ.
    print(f"merges that tokenizers makes too: {len(ours & theirs):,} of {len(theirs):,}")
    bench.ratio("CPU over tokenizers", "anadil", "tokenizers", 0.6)
    bench.ratio("second size over the first", "anadil: second size, half", "anadil", 0.6)
    ratio = bench.costs["anadil"].peak_bytes / bench.costs["rustbpe"].peak_bytes
    print(f"memory over rustbpe: {ratio:.2f} (at most 1)")


def count_large(bench: Bench) -> None:
    """A gigabyte as a corpus of the stage, counted with one process and with two."""
    from anadil.text.corpus import Document, write_documents

    texts = inputs.documents(inputs.real_texts(bench.data), 1_000 * MB)
    rows = (Document(id=str(n), text=text, source="", url="", lang="az") for n, text in enumerate(texts))
    write_documents(bench.folder / "corpus", "train", rows)
    costs = {}
    for workers in (1, 2):
        command = [sys.executable, str(HERE / "stage.py"), str(bench.folder), str(workers), str(SIZE)]
        cost = costs[workers] = measure.run(command, bench.folder / "log")
        count_s, merge_s = json.loads(cost.output)
        print(
            f"1 GB, {workers} processes: counted in {count_s:.1f} s on the clock, merged in {merge_s:.1f} s; "
            f"CPU {cost.cpu_s:.1f} s, peak of all processes {cost.peak_bytes / MB:,.0f} MB"
        )


if __name__ == "__main__":
    main()
