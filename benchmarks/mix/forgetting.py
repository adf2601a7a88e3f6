"""How much English a base loses while it learns Azerbaijani, by the replay that is mixed in, as Markdown tables.

ANADIL_DATA=DIR python benchmarks/mix/forgetting.py --base DIR --device cuda [--work DIR]

Each row is a mixture of a recipe, trained once a seed by the stages themselves. All rows take as many steps. Scores are
bits per byte of documents that no row trains on, before training and after it. Finished artifacts in `--work` are reused.
"""

import argparse
import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parents[2])]

from benchmarks.stage_runs import (  # noqa: E402  scripts are installed nowhere
    NEWS,
    DocumentScores,
    FailedStage,
    Scores,
    StageRuns,
    bits,
    documents,
    read_texts,
    score_documents,
    with_spread,
    write_lines,
)

from anadil.evaluate.bootstrap import paired_difference  # noqa: E402

HELD_OUT_EVERY = 16
"""One document of so many is scored and not trained on."""
CODE_EVERY = 8
"""One file of so many of Python's standard library is scored."""
ROWS: dict[str, dict[str, float]] = {
    "none": {"web": 1},
    "1 % real English": {"web": 0.99, "en": 0.01},
    "10 % real English": {"web": 0.9, "en": 0.1},
    "10 % written by the base": {"web": 0.9, "self": 0.1},
}
HELD_OUT = 0.15
"""Share of a source's documents that no row trains on, and that `auto` compares with the base: some of a dozen written ones."""
WEIGHTS: dict[str, float | str] = {
    f"{row}, KL {weight}": weight for row in list(ROWS)[2:] for weight in (1, 5, "auto")
}
"""Weight of the divergence from the base on all but `web`, by row."""
ROWS |= {row: ROWS[row.partition(",")[0]] for row in WEIGHTS}
COLUMNS = ("az", "en", "news", "code")
TITLES = {
    "az": "Azerbaijani",
    "en": "English as replayed",
    "news": "English news",
    "code": "Python",
}


def parser() -> argparse.ArgumentParser:
    """The command line; sizes default to those of a GPU."""
    made = argparse.ArgumentParser(description="Measure forgetting by the replay that is mixed in.")
    made.add_argument("--base", type=Path, required=True, help="directory of the base model")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--work", type=Path, default=Path("forgetting"), help="default: %(default)s")
    made.add_argument(
        "--rows", nargs="+", choices=tuple(ROWS), default=[row for row in ROWS if row not in WEIGHTS]
    )
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--steps", type=int, default=120)
    made.add_argument("--batch", type=int, default=32, help="sequences of a step")
    made.add_argument("--micro", type=int, default=32, help="sequences at a time")
    made.add_argument("--length", type=int, default=1_024, help="tokens of a sequence")
    made.add_argument("--lr", type=float, default=5e-4)
    made.add_argument("--written", type=int, default=250_000, help="tokens that the base writes")
    made.add_argument(
        "--precision", default="auto", help="of trainings; `bf16` on a CPU that has its products"
    )
    # A few long documents would be most of the figure.
    made.add_argument("--scored-chars", type=int, default=20_000, help="of a document, at most")
    made.add_argument("--trained-chars", type=int, help="of a document, at most")
    made.add_argument(
        "--documents", type=int, help="at most so many of a language or column, of all its files"
    )
    made.add_argument("--validate-every", type=int, default=10, help="steps between changes of `auto`")
    made.add_argument("--validate-documents", type=int, default=200, help="most of a source, for `auto`")
    made.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    made.add_argument("--prepare", action="store_true", help="make tokens, and stop before training")
    return made


def texts(most_chars: int, trained_chars: int | None) -> dict[str, list[str]]:
    """Training text by source, and scored text by column behind `scored.`; all English news is scored and none trained on."""
    az, en = documents("az"), documents("en")
    is_news = [any(name in file for name in NEWS) for file, _ in en]
    pages = [text for (_, text), news in zip(en, is_news, strict=True) if not news]
    web = [text for _, text in az]
    library = sorted(Path(os.__file__).parent.glob("*.py"))[::CODE_EVERY]
    scored = {
        "az": web[::HELD_OUT_EVERY],
        "en": pages[::HELD_OUT_EVERY],
        "news": [text for (_, text), news in zip(en, is_news, strict=True) if news],
        "code": [path.read_text(encoding="utf-8") for path in library],
    }
    trained = {
        "web": [text[:trained_chars] for at, text in enumerate(web) if at % HELD_OUT_EVERY],
        "en": [text[:trained_chars] for at, text in enumerate(pages) if at % HELD_OUT_EVERY],
    }
    return trained | {f"scored.{name}": [text[:most_chars] for text in each] for name, each in scored.items()}


def write_texts(folder: Path, most: int | None, most_chars: int, trained_chars: int | None) -> None:
    """Write each text as JSON lines, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    if all(
        (folder / f"{name}.jsonl").exists() for name in ("web", "en", *(f"scored.{each}" for each in COLUMNS))
    ):
        return
    for name, each in texts(most_chars, trained_chars).items():
        count = min(most or len(each), len(each))
        write_lines(
            folder / f"{name}.jsonl", [{"text": each[at * len(each) // count]} for at in range(count)]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Recipes and artifacts in a directory."""

    asked: argparse.Namespace
    turns: threading.Semaphore
    """Trainings that may run side by side."""
    scoring: threading.Lock
    locks: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    made: dict[str, str] = field(default_factory=dict)
    """Places of artifacts that rows share, by name."""

    @property
    def runs(self) -> StageRuns:
        """Stages that run in the directory of everything that is made."""
        return StageRuns(self.work)

    @property
    def work(self) -> Path:
        """Directory of everything that is made."""
        work: Path = self.asked.work.resolve()
        return work

    def source(self, name: str) -> dict[str, Any]:
        """Return a source of the recipe."""
        if name == "self":
            return {"written_by": "base", "tokens": self.asked.written, "max_epochs": 50}
        language = {} if name == "web" else {"language": name}
        return {"inputs": [str(self.work / f"texts/{name}.jsonl")], "max_epochs": 50, **language}

    def recipe(
        self, name: str, mix: Mapping[str, float], seed: int = 0, weight: float | str | None = None
    ) -> Path:
        """Write a recipe that trains on a mixture, as JSON, which is YAML."""
        asked = self.asked
        distillation = {"distillation": {"weight": weight}} if weight else {}
        scored = {each: str(self.work / f"texts/scored.{each}.jsonl") for each in COLUMNS}
        settings = {
            "language": "az",
            "seed": seed,
            "base": {"model": str(asked.base.resolve())},
            "sources": {
                source: self.source(source) | ({"teacher": "base"} if weight and source != "web" else {})
                for source in mix
            },
            "clean": {"heldout_fraction": HELD_OUT},
            "tokenizer": {"strategies": ["base"]},
            "pretrain": {
                "phases": [{"trains": "all", "steps": asked.steps, "lr": asked.lr, "mix": dict(mix)}],
                "precision": asked.precision,
                "batch_size": asked.batch,
                "micro_batch_size": min(asked.micro, asked.batch),
                "sequence_length": asked.length,
                "checkpoint_every": asked.steps,
                "validate_every": asked.validate_every if weight == "auto" else 0,
                "validate_documents": asked.validate_documents,
                **distillation,
                "faults": {"burn_in": "never"},
            },
            # `clean` leaves out training text that holds scored text.
            "evaluate": {
                "heldout": [scored["az"]],
                "retained": [scored["en"], scored["news"], scored["code"]],
                "gate": {"max_retained_ratio": 1},
            },
        }
        return self.runs.recipe(name, settings)

    def tokenizer(self) -> str:
        """Make the base's own tokenizer an artifact."""
        corpus = f"web={self.corpus('web')}"
        return self.once("tokenizer", "tokenizer", "--corpus", corpus)

    def corpus(self, source: str) -> str:
        """Clean a source; what the base writes is written before."""
        options = ["--source", source]
        if source == "self":
            options += ["--written", self.once("replay", "written", *options)]
        return self.once("clean", f"corpus-{source}", *options)

    def tokens(self, source: str) -> str:
        """Encode a source."""
        options = ["--source", source, "--corpus", self.corpus(source), "--tokenizer", self.tokenizer()]
        return self.once("encode", f"tokens-{source}", *options)

    def probabilities(self, source: str) -> str:
        """Store what the base expects behind each token of a source."""
        options = ["--source", source, "--tokens", self.tokens(source), "--tokenizer", self.tokenizer()]
        return self.once("distill", f"probabilities-{source}", *options)

    def once(self, stage: str, name: str, *options: str) -> str:
        """Run a stage of the recipe with all sources; others that ask for the artifact wait for it."""
        with self.locks[name]:
            if name not in self.made:
                self.made[name] = self.runs.stage(stage, self.work / "all.yaml", self.work / name, *options)
        return self.made[name]

    def trained(self, row: str) -> list[DocumentScores]:
        """Train a row once a seed, and score each."""
        with ThreadPoolExecutor(self.asked.seeds) as pool:
            return list(pool.map(lambda seed: self.one(row, seed), range(self.asked.seeds)))

    def one(self, row: str, seed: int) -> DocumentScores:
        """Train a row with a seed and score it, unless `--work` has the scores of this recipe."""
        mix, name = ROWS[row], f"{row.replace(' ', '-').replace('%', 'percent')}-{seed}"
        recipe = self.recipe(name, mix, seed, WEIGHTS.get(row))

        def made() -> DocumentScores:
            options = ["--tokenizer", self.tokenizer()]
            for source in mix:
                options += ["--tokens", f"{source}={self.tokens(source)}"]
                if row in WEIGHTS and source != "web":
                    options += ["--probabilities", f"{source}={self.probabilities(source)}"]
            if self.asked.prepare:
                return {}
            with self.turns:
                model = self.runs.stage("pretrain", recipe, self.work / f"model-{name}", *options)
            return self.scores(Path(model))

        scores = self.runs.saved(name, json.loads(recipe.read_text(encoding="utf-8")), made)
        print(f"{row}, seed {seed}: {bits(scores)}", file=sys.stderr, flush=True)
        return scores

    def of_base(self) -> DocumentScores:
        """Score the base."""
        settings = {
            "base": str(self.asked.base.resolve()),
            "length": self.asked.length,
            "in": self.asked.precision,
        }
        return self.runs.saved("base", settings, lambda: self.scores(self.asked.base))

    def scores(self, model: Path) -> DocumentScores:
        """Score a model on each column, in windows of the training's length."""
        # FP32 takes over twice the CPU seconds.
        in_bf16 = torch.autocast("cpu", torch.bfloat16, enabled=self.asked.precision == "bf16")
        with self.scoring, in_bf16:
            read = {column: read_texts(self.work / f"texts/scored.{column}.jsonl") for column in COLUMNS}
            return score_documents(model, read, self.asked.length)


def matrix(base: Scores, rows: Mapping[str, Sequence[Scores]]) -> Iterator[str]:
    """Yield bits per byte by row and column, before training and after it."""
    yield f"| replay | {' | '.join(TITLES[column] for column in COLUMNS)} |"
    yield "|---|" + "---:|" * len(COLUMNS)
    yield f"| (base) | {' | '.join(f'{base[column]:.3f}' for column in COLUMNS)} |"
    for name, seeds in rows.items():
        cells = (with_spread([each[column] for each in seeds]) for column in COLUMNS)
        yield f"| {name} | {' | '.join(cells)} |"


def ratios(base: Scores, rows: Mapping[str, Sequence[Scores]]) -> Iterator[str]:
    """Yield, of each row with replay, what is lost as a share of the loss without, and Azerbaijani beside that without."""
    lost = [column for column in COLUMNS if column != "az"]
    yield f"| replay | Azerbaijani, against none | {' | '.join(f'{TITLES[each]}: lost, of none' for each in lost)} |"
    yield "|---|" + "---:|" * len(COLUMNS)
    for name, seeds in rows.items():
        if name == "none":
            continue
        pairs = list(zip(seeds, rows["none"], strict=True))
        cells = [with_spread([100 * (one["az"] / none["az"] - 1) for one, none in pairs], 1) + " %"]
        # Runs are paired by seed: both read their Azerbaijani text in one order.
        cells += [
            with_spread([(one[each] - base[each]) / (none[each] - base[each]) for one, none in pairs])
            for each in lost
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def change(
    base: DocumentScores, to: Sequence[DocumentScores], since: Sequence[DocumentScores], column: str
) -> tuple[float, ...]:
    """Return how far the seeds' mean is from another, as a share of the base's bits, and the 95 % interval over documents."""
    nats, other = (np.mean([each[column][0] for each in seeds], axis=0) for seeds in (to, since))
    moved = paired_difference(nats, other, np.array(base[column][1]), seed=0)
    return tuple(each / bits(base)[column] for each in (moved.value, moved.low, moved.high))


def against_base(base: DocumentScores, rows: Mapping[str, Sequence[DocumentScores]]) -> Iterator[str]:
    """Yield Azerbaijani gained, as a share of what is gained without replay, and other bits per byte over the base's."""
    lost = [column for column in COLUMNS if column != "az"]
    yield f"| replay | Azerbaijani gained, of none | {' | '.join(f'{TITLES[each]}: over the base' for each in lost)} |"
    yield "|---|" + "---:|" * len(COLUMNS)
    gained = {name: change(base, seeds, [base], "az")[0] for name, seeds in rows.items()}
    for name, seeds in rows.items():
        cells = [f"{gained[name] / gained['none']:.3f}"]
        for column in lost:
            value, low, high = (1 + each for each in change(base, seeds, [base], column))
            cells.append(f"{value:.4f} ({low:.4f} to {high:.4f})")
        yield f"| {name} | {' | '.join(cells)} |"


def against_plain(base: DocumentScores, rows: Mapping[str, Sequence[DocumentScores]]) -> Iterator[str]:
    """Yield what the divergence changes beside the same replay without it, in per cent of the base's bits."""
    yield f"| replay | {' | '.join(f'{TITLES[column]}, %' for column in COLUMNS)} |"
    yield "|---|" + "---:|" * len(COLUMNS)
    for name, seeds in rows.items():
        if name not in WEIGHTS:
            continue
        cells = []
        for column in COLUMNS:
            value, low, high = (
                100 * each for each in change(base, seeds, rows[name.partition(",")[0]], column)
            )
            cells.append(f"{value:+.2f} ({low:+.2f} to {high:+.2f})")
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Train all rows, and print the tables."""
    asked = parser().parse_args()
    benchmark = Benchmark(asked=asked, turns=threading.Semaphore(asked.jobs), scoring=threading.Lock())
    write_texts(benchmark.work / "texts", asked.documents, asked.scored_chars, asked.trained_chars)
    if asked.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    mix = dict.fromkeys((source for row in asked.rows for source in ROWS[row]), 1)
    # The base is scored on the retained texts for `auto` alone.
    weights = {WEIGHTS[row] for row in asked.rows if row in WEIGHTS}
    benchmark.recipe("all", mix, weight="auto" if "auto" in weights else next(iter(weights), None))
    rows = {}
    with ThreadPoolExecutor(len(asked.rows) + 1) as pool:
        # First, while tokens are made: without the base's row the others say little.
        base = None if asked.prepare else pool.submit(benchmark.of_base)
        for row, seeds in {row: pool.submit(benchmark.trained, row) for row in asked.rows}.items():
            try:
                rows[row] = seeds.result()
            except FailedStage as error:
                print(f"{row}: left out, {error}", file=sys.stderr)
    if base is None:
        return
    means = {row: [bits(each) for each in seeds] for row, seeds in rows.items()}
    print("\n".join(matrix(bits(base.result()), means)))
    if "none" in rows:
        print("\n" + "\n".join(ratios(bits(base.result()), means)))
        print("\n" + "\n".join(against_base(base.result(), rows)))
        # A row whose replay alone was left out has nothing to compare with.
        if all(row.partition(",")[0] in rows for row in rows):
            print("\n" + "\n".join(against_plain(base.result(), rows)))


if __name__ == "__main__":
    main()
