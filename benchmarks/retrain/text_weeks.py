"""CPU time of the text stages in the last of four equal weeks, over a quarter of a run on all of them.

    ANADIL_DATA=... python benchmarks/retrain/text_weeks.py [--documents 5000] [--repeats 2]

Each stage is a process of its own, `clean` with one worker. A start is the same stage on 40 documents. Ends with 1 if
the goal is missed.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "clean"))

import inputs
import measure

from anadil.artifacts import artifact

WEEKS = 4
MAX_LAST_WEEK = 1.3
FEW = 40
LANGUAGE = "az"


class Runs:
    """Artifacts and logs in a directory."""

    def __init__(self, work: Path, repeats: int) -> None:
        """Begin with the tokenizer of `ANADIL_DATA`."""
        self.work, self.repeats = work, repeats
        self.tokenizer = work / "tokenizer"
        shutil.copytree(inputs.data() / "tokenizers/gpt2", self.tokenizer)
        (self.tokenizer / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}', "utf-8")
        artifact.seal(self.tokenizer, kind="tokenizer", origin={})

    def clean(self, raw: Path, name: str, since: str = "") -> float:
        """Clean a file into `corpus-NAME`; return the CPU seconds."""
        recipe = {"clean": {"workers": 1} | ({"since": str(self.work / f"corpus-{since}")} if since else {})}
        return self._run("clean", f"corpus-{name}", recipe, "--raw", str(raw))

    def encode(self, name: str, since: str = "") -> float:
        """Encode a corpus into `tokens-NAME`; return the CPU seconds."""
        artifacts = {kind: str(self.work / f"{kind}-{since}") for kind in ("corpus", "tokens")}
        champion = {"name": "anadil", "version": "1", "uri": "none", "digest": "none", "artifacts": artifacts}
        recipe = {"retrain": {"champion": champion}} if since else {}
        options = ("--corpus", str(self.work / f"corpus-{name}"), "--tokenizer", str(self.tokenizer))
        return self._run("encode", f"tokens-{name}", recipe, *options)

    def _run(self, stage: str, name: str, keys: dict[str, Any], *options: str) -> float:
        recipe, out = self.work / f"{name}.yaml", self.work / name
        settings = {"language": LANGUAGE, "tracking": {"uri": "off"}, **keys}
        recipe.write_text(json.dumps(settings), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "anadil",
            stage,
            "--recipe",
            str(recipe),
            "--out",
            str(out),
            *options,
        ]
        costs = []
        for _ in range(self.repeats):
            shutil.rmtree(out, ignore_errors=True)
            # Shards of another start would be reused.
            environment = {"ANADIL_WORK": tempfile.mkdtemp(dir=self.work)}
            costs.append(measure.run(command, self.work / "log", environment).cpu_s)
        return min(costs)


def compared(name: str, cost: Callable[[str, str], float]) -> bool:
    """Print the CPU seconds of a stage: a start, each week, and all at once."""
    start, whole = cost("few", ""), cost("all", "")
    weeks = [cost(str(number), str(number - 1) if number else "") for number in range(WEEKS)]
    ratio, without = weeks[-1] * WEEKS / whole, (weeks[-1] - start) * WEEKS / (whole - start)
    print(
        f"| {name} | {start:.2f} | {', '.join(f'{each:.2f}' for each in weeks)} | {whole:.2f} | **{ratio:.2f}** | "
        f"{without:.2f} |",
        flush=True,
    )
    return ratio <= MAX_LAST_WEEK


def main() -> int:
    """Print a table of the stages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=5_000, help="of a week; 2.4 kB each")
    parser.add_argument("--repeats", type=int, default=2, help="runs of which the cheapest counts")
    options = parser.parse_args()
    print(f"{measure.machine()}, Python {sys.version.split()[0]}, weeks of {options.documents:,} documents\n")
    print("| stage | start, CPU s | weeks | all at once | the last week over its share | without start |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="weeks-") as folder:
        work = Path(folder)
        raw = {str(n): work / f"{n}.jsonl" for n in range(WEEKS)} | {
            "all": work / "all.jsonl",
            "few": work / "few.jsonl",
        }
        weeks = [
            inputs.write_jsonl(raw[str(n)], LANGUAGE, options.documents, seed=n).read_bytes()
            for n in range(WEEKS)
        ]
        raw["all"].write_bytes(b"".join(weeks))
        inputs.write_jsonl(raw["few"], LANGUAGE, FEW)
        runs = Runs(work, options.repeats)
        results = [
            compared("clean", lambda name, since: runs.clean(raw[name], name, since)),
            compared("encode", runs.encode),
        ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
