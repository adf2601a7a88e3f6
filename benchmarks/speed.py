"""CPU time of each stage over a plain loop that does its core with the same libraries.

make speed                                                # writes benchmarks/speed.json, some ten minutes on two cores
python -m benchmarks.speed --check benchmarks/speed.json  # exit code 1 where a ratio is more than a tenth above it

A ratio is the median over pairs that take turns, so what else the machine does falls on both. Stages and loops of text
are whole processes, with their start. Steps, finetuning and scoring are timed without it, by the benchmark of their stage.
The text is real Azerbaijani: `ANADIL_DATA` names its folder.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "clean"), str(HERE / "train")]

TARGET = HERE / "speed.json"
GRACE = 1.1
"""A ratio may grow so much: pairs of one program on a shared machine differ by half of that."""
PAIRS = 3
JSONL_DOCUMENTS, WARC_PAGES = 20_000, 1_200
"""Some 40 MB of text, and 60 MB of pages."""
VOCABULARY = 16_000
PACKAGES = ("torch", "transformers", "tokenizers", "trafilatura", "trl")
STEP = {"vocabulary": 32_000, "steps": 3, "warmup": 1, "batch": 2}
RECIPE = {
    "language": "az",
    "base": {"model": "tiny"},
    "clean": {"inputs": ["text"], "workers": 2},
    "tokenizer": {"strategies": ["replace"], "vocab_sizes": [VOCABULARY]},
    "tracking": {"uri": "off"},
}
Pair = tuple[float, float]
"""CPU seconds of the stage, and of the plain loop."""


def clean_jsonl(source: str, out: str) -> None:
    """Parse, normalize, tell the language, split into words, and write the documents that are Azerbaijani."""
    import pycld2
    import zstandard

    with open(source, encoding="utf-8") as lines, zstandard.open(out, "wt", encoding="utf-8") as file:  # noqa: PTH123
        for line in lines:
            row = json.loads(line)
            text = unicodedata.normalize("NFC", row["text"])
            if pycld2.detect(text)[2][0][1] == "az" and len(text.split()) > 10:
                file.write(json.dumps({"id": row["id"], "text": text}, ensure_ascii=False) + "\n")


def clean_warc(source: str, out: str) -> None:
    """Take the text of each page that is Azerbaijani by its plain text, as clean's cheap look does."""
    import pycld2
    import trafilatura
    import zstandard
    from fastwarc.warc import ArchiveIterator, WarcRecordType
    from resiliparse.extract.html2text import extract_plain_text

    with open(source, "rb") as file, zstandard.open(out, "wt", encoding="utf-8") as kept:  # noqa: PTH123
        for record in ArchiveIterator(file, record_types=WarcRecordType.response):
            html = record.reader.read().decode(errors="replace")
            plain = "".join(each for each in extract_plain_text(html) if each.isprintable() or each == "\n")
            if plain.strip() and pycld2.detect(plain)[2][0][1] == "az":
                text = trafilatura.extract(html) or ""
                kept.write(
                    json.dumps({"text": unicodedata.normalize("NFC", text)}, ensure_ascii=False) + "\n"
                )


def corpus_texts(corpus: str) -> list[str]:
    """Texts of the training part of a corpus."""
    import zstandard

    texts: list[str] = []
    for path in sorted(Path(corpus, "train").glob("*.zst")):
        with zstandard.open(path, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    return texts


def tokenizer(corpus: str, out: str) -> None:
    """Learn a byte-level vocabulary."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    from anadil.text.cut_patterns import LLAMA_3_REGEX

    made = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(LLAMA_3_REGEX), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(corpus_texts(corpus), trainer)
    made.save(out)


def encode(corpus: str, folder: str, out: str) -> None:
    """Encode all documents into one file of ids."""
    import numpy as np
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    rows = encoder.encode_batch_fast(corpus_texts(corpus), add_special_tokens=False)
    np.save(out, np.concatenate([np.array(row.ids, dtype=np.int32) for row in rows]))


def start() -> None:
    """Import the libraries of `clean`."""
    import fasttext  # noqa: F401
    import fastwarc  # noqa: F401
    import numpy as np  # noqa: F401
    import pyarrow as pa  # noqa: F401
    import pycld2  # noqa: F401
    import trafilatura  # noqa: F401
    import zstandard  # noqa: F401


LOOPS: dict[str, Callable[..., None]] = {
    "clean_jsonl": clean_jsonl, "clean_warc": clean_warc, "tokenizer": tokenizer, "encode": encode, "start": start,
}  # fmt: skip


class Bench:
    """Runs stages and loops in a folder."""

    def __init__(self, work: Path) -> None:
        """Make the inputs."""
        import inputs

        self.work = work
        self.jsonl = inputs.write_jsonl(work / "documents.jsonl", "az", JSONL_DOCUMENTS)
        self.warc = inputs.write_warc(work / "pages.warc.gz", WARC_PAGES, 0.23)
        self.one = inputs.write_jsonl(work / "few.jsonl", "az", 20)
        self.corpus, self.tokenizer = work / "corpus", work / "tokenizer"

    def cpu(self, *command: str) -> float:
        """CPU seconds of a command with all its processes."""
        import measure

        log = self.work / "log"
        environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        return measure.run([sys.executable, *command], log, environment).cpu_s

    def stage(self, name: str, out: Path, *options: str) -> float:
        """CPU seconds of a stage."""
        shutil.rmtree(out, ignore_errors=True)
        recipe = self.work / "recipe.yaml"  # JSON is YAML
        recipe.write_text(
            json.dumps(RECIPE | {"storage": {"root": str(self.work / "store")}}), encoding="utf-8"
        )
        return self.cpu("-m", "anadil", name, "--recipe", str(recipe), *options, "--out", str(out))

    def loop(self, name: str, *arguments: Path) -> float:
        """CPU seconds of a plain loop."""
        return self.cpu("-m", "benchmarks.speed", "--loop", name, *map(str, arguments))

    def clean(self, source: Path, loop: str) -> Pair:
        """The stage `clean` on a file."""
        out = self.corpus if source == self.jsonl else self.work / "other"
        return self.stage("clean", out, "--raw", str(source)), self.loop(loop, source, self.work / "loop.zst")

    def learn(self) -> Pair:
        """The stage `tokenizer`, one vocabulary in the place of the base's."""
        ours = self.stage("tokenizer", self.tokenizer, "--corpus", str(self.corpus))
        return ours, self.loop("tokenizer", self.corpus, self.work / "loop.json")

    def encode(self) -> Pair:
        """The stage `encode`."""
        options = ("--corpus", str(self.corpus), "--tokenizer", str(self.tokenizer))
        ours = self.stage("encode", self.work / "tokens", *options)
        return ours, self.loop("encode", self.corpus, self.tokenizer, self.work / "loop.npy")

    def start(self) -> Pair:
        """A stage on next to nothing."""
        return self.stage("clean", self.work / "few", "--raw", str(self.one)), self.loop("start")

    def step(self, precision: str) -> Pair:
        """A training step, and one of a loop of transformers' model with AdamW."""
        from given import Given

        given = Given(precision=precision, **STEP).dumps()  # type: ignore[arg-type]
        ours, plain = (
            self._figures("train/one.py", name, given)["tokens_per_cpu_s"] for name in ("anadil", "plain")
        )
        return 1 / ours, 1 / plain

    def finetune(self) -> Pair:
        """An epoch on chats, and TRL's."""
        ours, plain = (
            self._figures("finetune/compare.py", "--only", name)["cpu_s"] for name in ("anadil", "TRL")
        )
        return ours, plain

    def evaluate(self) -> Pair:
        """Bits per byte of documents, and a document at a time by transformers' model."""
        ours, plain = (
            self._figures("evaluate/scoring.py", "--only", name)["cpu_s"] for name in ("anadil", "plain loop")
        )
        return ours, plain

    def _figures(self, script: str, *arguments: str) -> dict[str, Any]:
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(HERE / script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-3_000:]}")
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures


def measured(work: Path) -> dict[str, Any]:
    """All rows, and what they were measured with."""
    import measure

    bench = Bench(work)
    rows: dict[str, Callable[[], Pair]] = {
        "clean, JSON lines": lambda: bench.clean(bench.jsonl, "clean_jsonl"),
        "clean, WARC": lambda: bench.clean(bench.warc, "clean_warc"),
        "tokenizer": bench.learn,
        "encode": bench.encode,
        "training step, FP32": lambda: bench.step("fp32"),
        "training step, BF16": lambda: bench.step("bf16"),
        "finetune": bench.finetune,
        "evaluate": bench.evaluate,
        "start of a stage": bench.start,
    }
    bench.start()  # compiles sources and kernels once
    figures = {}
    for name, row in rows.items():
        pairs = [row() for _ in range(PAIRS)]
        figures[name] = {
            "ratio": round(statistics.median(ours / plain for ours, plain in pairs), 3),
            "pairs": [[round(ours, 4), round(plain, 4)] for ours, plain in pairs],
        }
        print(f"{name}: {figures[name]['ratio']:.2f} times the plain loop", flush=True)
    versions = {package: version(package) for package in PACKAGES}
    return {
        "processor": processor(measure.machine()), "machine": measure.machine(),
        "python": sys.version.split()[0], "versions": versions, "rows": figures,
    }  # fmt: skip


def processor(machine: str) -> str:
    """The model of the processor: ratios of another one are other ratios."""
    return machine.partition("(")[2].partition(")")[0]


def slower(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Rows whose ratio grew by more than the grace."""
    return [
        f"{name}: {row['ratio']:.2f} times the plain loop, {before['rows'][name]['ratio']:.2f} before"
        for name, row in now["rows"].items()
        if name in before["rows"] and row["ratio"] > GRACE * before["rows"][name]["ratio"]
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", type=Path, help="compare with this file and write none")
    parser.add_argument("--loop", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.loop:
        LOOPS[options.loop[0]](*options.loop[1:])
        return 0
    if "ANADIL_DATA" not in os.environ:
        print("left out: speed needs real text, in the folder that ANADIL_DATA names")
        return 0 if options.check else 2
    import measure

    before = json.loads(options.check.read_text(encoding="utf-8")) if options.check else None
    if before and processor(measure.machine()) != before["processor"]:
        print(f"left out: {options.check} is of another processor, {before['processor']}")
        return 0
    with tempfile.TemporaryDirectory(prefix="speed-") as work:
        now = measured(Path(work))
    if before is None:
        TARGET.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        return 0
    grown = slower(now, before)
    print("\n".join(grown) or f"no ratio grew by more than {GRACE - 1:.0%}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
