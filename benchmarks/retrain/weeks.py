"""Four weekly additions against one run on all text: CPU time and bits per byte, as Markdown tables.

ANADIL_DATA=DIR python benchmarks/retrain/weeks.py [--base DIR] [--work DIR]

A first run learns half of the Azerbaijani text and is promoted. Each of four weeks brings an eighth of the text, and
`anadil retrain` teaches it. Another run, in a directory of its own, learns all text from the base. Both are scored on
the same text. Finished artifacts in `--work` are reused, and so are the figures of finished commands.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]

from benchmarks.stage_runs import NEWS, StageRuns, documents, write_lines  # noqa: E402  scripts are installed nowhere

WEEKS = 4
PARTS = 8
"""A week is one part of so many; the first run learns as many parts as are left."""
HELD_OUT_EVERY = 16
"""One document of so many is scored and not trained on."""
LONGEST_SCORED = 1_000
"""Characters of a scored document: a few long ones would be most of the figure."""
SCORED = 40
"""Documents of a body of text that are scored."""
ENGLISH_SHARE = 0.2


def parser() -> argparse.ArgumentParser:
    """The command line; sizes are those of two CPUs and half an hour."""
    made = argparse.ArgumentParser(description="Compare four retrainings with one run on all text.")
    made.add_argument("--base", default="tiny", help="directory of the base model (default: %(default)s)")
    made.add_argument("--work", type=Path, default=Path("weeks"), help="default: %(default)s")
    made.add_argument("--epochs", type=float, default=2.0, help="passes of all runs over Azerbaijani text")
    made.add_argument("--batch", type=int, default=16, help="sequences of a step")
    made.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    made.add_argument("--lr", type=float, default=1e-3)
    made.add_argument("--precision", default="auto")
    made.add_argument(
        "--tokens", type=float, default=1.0, help="tokens of a week over its share of the run on all's"
    )
    made.add_argument("--documents", type=int, help="at most so many of a language")
    text = "a week ends with the mean of so many checkpoints, in place of a decay (default: it decays)"
    made.add_argument("--average", type=int, metavar="N", help=text)
    return made


def write_texts(folder: Path, most: int | None) -> None:
    """Write the text of the first run, of each week, and what is scored, unless they are there."""
    if (folder / "scored.week-1.jsonl").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    # By digest, so that no week is of one kind of text.
    az, en = (
        sorted((text for file, text in documents(name) if not (name == "en" and any(each in file for each in NEWS))),
               key=lambda text: hashlib.sha256(text.encode()).digest())[:most]
        for name in ("az", "en")
    )  # fmt: skip
    trained = [text for at, text in enumerate(az) if at % HELD_OUT_EVERY]
    parts = equal_parts(trained)
    bodies = {f"week-{number}": parts[number - 1] for number in range(1, WEEKS + 1)}
    bodies["first"] = [text for part in parts[WEEKS:] for text in part]
    bodies["english"] = [text for at, text in enumerate(en) if at % HELD_OUT_EVERY]
    scored = {"az": az[::HELD_OUT_EVERY], "en": en[::HELD_OUT_EVERY], "week-1": bodies["week-1"]}
    bodies |= {
        f"scored.{name}": [text[:LONGEST_SCORED] for text in each[:SCORED]] for name, each in scored.items()
    }
    for name, texts in bodies.items():
        write_lines(folder / f"{name}.jsonl", [{"text": text} for text in texts])


def equal_parts(texts: Sequence[str]) -> list[list[str]]:
    """Cut texts, in their order, into `PARTS` of about as many characters: a week's share of the cost is that of its text."""
    parts: list[list[str]] = [[] for _ in range(PARTS)]
    whole, before = sum(map(len, texts)), 0
    for text in texts:
        parts[PARTS * before // whole].append(text)
        before += len(text)
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Weeks:
    """Commands and their figures in a directory."""

    asked: argparse.Namespace

    @property
    def work(self) -> Path:
        """Directory of all that is made."""
        work: Path = self.asked.work.resolve()
        return work

    def recipe(self, name: str) -> Path:
        """Write the recipe of a directory of runs, as JSON, which is YAML; its text lies in `name`/text."""
        asked, texts = self.asked, self.work / "texts"
        mix = {"web": 1 - ENGLISH_SHARE, "en": ENGLISH_SHARE}
        settings: dict[str, Any] = {
            "language": "az",
            "base": {"model": asked.base},
            "sources": {
                "web": {"inputs": [str(self.work / name / "text/*.jsonl")], "max_epochs": 50},
                "en": {"inputs": [str(texts / "english.jsonl")], "language": "en", "max_epochs": 50},
            },
            "tokenizer": {"strategies": ["extend"], "vocab_sizes": "auto"},
            "pretrain": {
                # Shortened by max_epochs, whatever the text.
                "phases": [{"trains": "all", "steps": 100_000, "lr": asked.lr, "mix": mix}],
                "max_epochs": asked.epochs,
                "schedule": "wsd",
                "batch_size": asked.batch,
                "sequence_length": asked.length,
                "precision": asked.precision,
                "checkpoint_every": 1_000,
                "validate_every": 0,
            },
            "evaluate": {
                "heldout": [str(texts / "scored.az.jsonl")],
                "retained": [str(texts / "scored.en.jsonl"), str(texts / "scored.week-1.jsonl")],
                # A model this small loops, after one run on all text too. The text of week 1 is learnt by heart, and then less so.
                "gate": {
                    "modes": {
                        "adapted.loops": "report",
                        "adapted.retained_to_champion.scored.week-1": "report",
                    }
                },
            },
            # With 1, as many tokens for each token of text as the run on all has.
            "retrain": {"epochs": asked.tokens * asked.epochs * 0.5 / (1 - ENGLISH_SHARE)},
        }
        return StageRuns(self.work).recipe(name, settings)

    def add_text(self, name: str, *bodies: str) -> None:
        """Put bodies of text where the recipe of a name reads."""
        folder = self.work / name / "text"
        folder.mkdir(parents=True, exist_ok=True)
        for body in bodies:
            if not (folder / f"{body}.jsonl").exists():
                os.link(self.work / f"texts/{body}.jsonl", folder / f"{body}.jsonl")

    def run(self, name: str, step: str, *command: str) -> dict[str, Any]:
        """Run a command of the product once; return its result and CPU seconds, saved for the next time."""

        def made() -> dict[str, Any]:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            registry = f"sqlite:///{self.work / name}/mlflow.db"
            environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "MLFLOW_TRACKING_URI": registry}
            done = subprocess.run(
                [sys.executable, "-m", "anadil", *command],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            (self.work / f"{name}-{step}.log").write_text(done.stderr, encoding="utf-8")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            # A refused challenger is a result of a week.
            if done.returncode and not (done.returncode == 6 and command[0] == "retrain"):
                sys.exit(f"anadil {' '.join(command)} ends with {done.returncode}: {done.stderr[-3_000:]}")
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            result = json.loads(done.stdout) if done.stdout.startswith("{") else {}
            return {"result": result, "cpu": seconds, "code": done.returncode}

        return StageRuns(self.work).saved(f"{name}-{step}", {"command": list(command)}, made)

    def first(self, name: str, *bodies: str) -> dict[str, Any]:
        """Run the pipeline on some bodies of text, from the base, and promote the result."""
        self.add_text(name, *bodies)
        made = self.run(name, "first", "run", str(self.recipe(name)), *self.options(name))
        self.run(name, "promote", "promote", made["result"]["model"], "--as", "champion")
        return made

    def week(self, name: str, number: int) -> dict[str, Any]:
        """Retrain the champion on the text of a week."""
        self.add_text(name, f"week-{number}")
        asked = self.asked.average
        mean = ("--set", f"pretrain.average_last={asked}") if asked else ()
        return self.run(name, f"week-{number}", "retrain", str(self.recipe(name)), *mean, *self.options(name))

    def options(self, name: str) -> list[str]:
        """Return the options that commands share."""
        return ["--work", str(self.work / name), "-o", "json"]


def bits(made: Mapping[str, Any]) -> dict[str, float]:
    """Return bits per byte of a run's merged model, else of its trained one, by body of text."""
    scores = Path(made["result"]["scores"]) / "scores.json"
    candidates = json.loads(scores.read_text(encoding="utf-8"))["candidates"]
    model = candidates.get("merged") or candidates["adapted"]
    return {"az": model["bits_per_byte"], **model["retained"]}


def seconds(made: Mapping[str, Any]) -> dict[str, float]:
    """Return seconds of each artifact of a run, by word."""
    times = {}
    for word, uri in made["result"].items():
        folder = Path(uri).parent if word == "report" else Path(uri)
        figures = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["figures"]
        times[word] = float(figures.get("seconds", 0))
    return times


def costs(whole: Mapping[str, Any], weeks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield CPU seconds of each command, and of a week over its share of the run on all text."""
    share = whole["cpu"] / PARTS
    yield "| command | CPU s | over a week's share of the run on all | outcome |"
    yield "|---|---:|---:|---|"
    yield f"| `anadil run` on all text | {whole['cpu']:.0f} | | |"
    for number, made in enumerate(weeks):
        step = f"`anadil retrain`, week {number}" if number else "`anadil run`, the first half"
        release = made["result"].get("release")
        outcome = (
            json.loads((Path(release) / "release.json").read_text(encoding="utf-8"))["outcome"]
            if release
            else ""
        )
        ratio = f"{made['cpu'] / share:.2f}" if number else ""
        yield f"| {step} | {made['cpu']:.0f} | {ratio} | {outcome} |"


def stages(whole: Mapping[str, Any], last: Mapping[str, Any]) -> Iterator[str]:
    """Yield seconds of each stage in the run on all text and in the last week; a reused artifact costs none here."""
    yield "| artifact | run on all, s | the last week, s | over its share |"
    yield "|---|---:|---:|---:|"
    before, after = seconds(whole), seconds(last)
    for word, took in after.items():
        share = before.get(word, 0) / PARTS
        ratio = f"{took / share:.2f}" if share else ""
        yield f"| {word} | {before.get(word, 0):.1f} | {took:.1f} | {ratio} |"


def scores(whole: Mapping[str, Any], weeks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield bits per byte after each command, and after the last one against the run on all text."""
    names = list(bits(whole))
    yield f"| after | {' | '.join(names)} |"
    yield "|---|" + "---:|" * len(names)
    for number, made in enumerate(weeks):
        row = bits(made)
        yield f"| {f'week {number}' if number else 'the first half'} | {' | '.join(f'{row[name]:.3f}' for name in names)} |"
    last, against = bits(weeks[-1]), bits(whole)
    yield f"| one run on all | {' | '.join(f'{against[name]:.3f}' for name in names)} |"
    cells = (f"{100 * (last[name] / against[name] - 1):+.1f} %" for name in names)
    yield f"| the last week, against it | {' | '.join(cells)} |"


def main() -> None:
    """Run all, and print the tables."""
    asked = parser().parse_args()
    all_weeks = Weeks(asked=asked)
    write_texts(all_weeks.work / "texts", asked.documents)
    names = [f"week-{number}" for number in range(1, WEEKS + 1)]
    weeks = [all_weeks.first("weekly", "first")]
    weeks += [all_weeks.week("weekly", number) for number in range(1, WEEKS + 1)]
    all_weeks.add_text("whole", "first", *names)
    whole = all_weeks.run(
        "whole", "first", "run", str(all_weeks.recipe("whole")), *all_weeks.options("whole")
    )
    for table in (costs(whole, weeks), stages(whole, weeks[-1]), scores(whole, weeks)):
        print("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
