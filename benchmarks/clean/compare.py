"""Cleaning beside its peers: the same input, the same steps, one run, one process at a time.

    python -m venv peers && peers/bin/pip install -r benchmarks/clean/peers.txt
    ANADIL_DATA=... python benchmarks/clean/compare.py --peers peers/bin/python

Every tool gets the same input, and a smaller or, if it is fast, a larger one of the same kind. What a document more
costs is the slope between the two, what a start costs is the rest. CPU seconds are those of all processes of a tool, memory is the largest sum over them.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import inputs
import measure
from measure import Cost

HERE = Path(__file__).parent
MIN_KEPT = 3
LARGER = {"warc": 4, "jsonl": 20, "minhash": 20}
"""Times the input by which a fast tool's slope is measured: of a small one it is lost in the noise of its start."""
DATATROVE, STAGE = "datatrove 0.10", "anadil"
SLOW = (DATATROVE, "datasketch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of input."""

    kind: str
    """`warc`, `jsonl` or `minhash`."""
    title: str
    language: str
    counts: tuple[int, int]
    """Pages or documents: fewer, and those that every tool gets."""
    least_ratio: float
    """Documents per CPU second over datatrove that the stage is to reach."""
    share: float = 1.0
    """Share of pages in the language."""

    def resized(self, factor: float) -> "Case":
        """The same with other sizes."""
        # A corpus needs documents: one is held out.
        least = int(MIN_KEPT / self.share)
        small, large = (max(least * place, int(self.counts[place - 1] * factor)) for place in (1, 2))
        return replace(self, counts=(small, large))

    @property
    def tools(self) -> tuple[str, ...]:
        """Who takes part, datatrove first."""
        return (DATATROVE, *(("datasketch", "rensa") if self.kind == "minhash" else ()), STAGE)


CASES = (
    Case(kind="warc", title="WARC, 1 % az", language="az", counts=(300, 1200), share=0.01, least_ratio=15),
    Case(kind="warc", title="WARC, 23 % az", language="az", counts=(100, 500), share=0.23, least_ratio=7),
    Case(kind="warc", title="WARC, 100 % az", language="az", counts=(50, 250), least_ratio=3.5),
    Case(kind="jsonl", title="JSONL, az", language="az", counts=(300, 1500), least_ratio=25),
    Case(kind="jsonl", title="JSONL, ja", language="ja", counts=(300, 1500), least_ratio=15),
    Case(kind="minhash", title="MinHash, az", language="az", counts=(1000, 5000), least_ratio=20),
    Case(kind="minhash", title="MinHash, ja", language="ja", counts=(1000, 5000), least_ratio=20),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Cost of a tool on a case."""

    tool: str
    per_document_s: float
    start_s: float
    whole_s: float
    """CPU seconds of the input that every tool gets, with the start."""
    peak_bytes: int
    document_bytes: float
    """Bytes of the input on the disk."""
    output: str
    """How many documents stay, as the tool says it."""

    @property
    def cpu_hours_per_tb(self) -> float:
        """CPU hours for 10^12 bytes of input, without the start."""
        return self.per_document_s / self.document_bytes * 1e12 / 3600


def make_input(case: Case, count: int, folder: Path) -> Path:
    """The input of a case, in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("pages.warc.gz" if case.kind == "warc" else "documents.jsonl")
    if path.exists():
        return path
    if case.kind == "warc":
        return inputs.write_warc(path, count, case.share, case.language)
    return inputs.write_jsonl(path, case.language, count)


def command(tool: str, case: Case, source: Path, out: Path, peers: str) -> list[str]:
    """The command of a tool for an input."""
    if tool == DATATROVE:
        pii = ["--pii"] if case.kind == "jsonl" else []
        return [
            peers, str(HERE / "datatrove_peer.py"), case.kind, str(source), str(out), "--language", case.language,
            "--settings", str(inputs.data() / "lists" / "fineweb2"), *pii,
        ]  # fmt: skip
    if tool != STAGE:
        script = str(HERE / "minhash_peer.py")
        return [peers, script, tool, str(source), str(out), "--language", case.language]
    if case.kind == "minhash":
        script = str(HERE / "minhash_stage.py")
        return [sys.executable, script, str(source), str(out), "--language", case.language]
    settings = [f"language={case.language}", "tracking.uri=off", "clean.workers=1"]
    settings += ["clean.pii=true"] if case.kind == "jsonl" else []
    options = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "anadil", "clean", *options, "--raw", str(source), "--out", str(out)]


def measured(tool: str, case: Case, work: Path, peers: str) -> Row:
    """Run a tool on the input and on one of another size."""
    small, same = case.counts
    counts = (small, same) if tool in SLOW else (same, LARGER[case.kind] * same)
    costs: dict[int, Cost] = {}
    for count in counts:
        source = make_input(case, count, work / f"in-{count}")
        out = work / "out"
        shutil.rmtree(out, ignore_errors=True)
        log = work / f"{tool.split(maxsplit=1)[0]}.log"
        costs[count] = measure.run(command(tool, case, source, out, peers), log)
    less, more = (costs[count].cpu_s for count in counts)
    per_document = (more - less) / (counts[1] - counts[0])
    whole = costs[same]
    return Row(
        tool=tool, per_document_s=per_document, start_s=less - per_document * counts[0], whole_s=whole.cpu_s,
        peak_bytes=whole.peak_bytes, output=whole.output,
        document_bytes=make_input(case, same, work / f"in-{same}").stat().st_size / same,
    )  # fmt: skip


def show(case: Case, rows: Sequence[Row]) -> bool:
    """Print the rows of a case; whether the stage reaches what it is to reach."""
    peer, ours = rows[0], rows[-1]
    for row in rows:
        ratio = peer.per_document_s / max(row.per_document_s, 1e-9)
        print(
            f"| {case.title} | {row.tool} | {row.per_document_s * 1000:.2f} "
            f"| {row.cpu_hours_per_tb:,.0f} | {row.start_s:.1f} "
            f"| {row.whole_s:.1f} | {row.peak_bytes / 2**20:,.0f} | {ratio:.1f} "
            f"| {peer.whole_s / row.whole_s:.1f} | {case.least_ratio if row is ours else ''} |",
            flush=True,
        )
    return peer.per_document_s >= case.least_ratio * ours.per_document_s


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; the exit code is 1 if a ratio is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", required=True, help="python of the peers' environment")
    parser.add_argument("--only", default="", help="part of the title of the cases to run, such as WARC")
    parser.add_argument("--size", type=float, default=1.0, help="factor on the sizes of all inputs")
    options = parser.parse_args(argv)
    if "ANADIL_DATA" not in os.environ:
        parser.error("set ANADIL_DATA to the folder of the real data")
    print(f"{measure.machine()}, Python {sys.version.split()[0]}\n")
    print(
        "| input | tool | CPU ms a document | CPU h a TB | start, CPU s | whole, CPU s | peak MiB | documents per CPU s over "
        "datatrove | whole over datatrove | at least |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    reached = True
    for case in (case.resized(options.size) for case in CASES if options.only in case.title):
        with tempfile.TemporaryDirectory(prefix="clean-") as name:
            work = Path(name)
            rows = [measured(tool, case, work, options.peers) for tool in case.tools]
        reached &= show(case, rows)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
