"""Whether a short trial ranks tokenizers as a longer one does: Kendall's tau after N and 5 N steps.

    python -m benchmarks.tokenizer.trial --text FILE.jsonl ... [--steps 20] [--times 5] [--work DIR]

Every candidate of every strategy and size takes part, more than the one of each strategy that a trial compares, with
the recipe `smoke` and its base model, at equal compute. Results are kept below the work directory and found again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import torch

from anadil.core.stages import STAGES
from anadil.model.load import pick_device
from anadil.model.process_group import Group
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job, external_side_files
from anadil.text.metrics import bits_per_byte
from anadil.trial.budget import budget_of
from anadil.trial.finalists import Finalist
from anadil.trial.reuse import FOLDER, read_result
from anadil.trial.run import try_finalist
from anadil.trial.texts import TARGET, read_texts


def tau(first: list[float], second: list[float]) -> float:
    """Kendall's tau of two rankings without ties: (concordant - discordant) / pairs."""
    pairs = list(combinations(range(len(first)), 2))
    signs = [(first[a] - first[b]) * (second[a] - second[b]) for a, b in pairs]
    return sum(1 if sign > 0 else -1 for sign in signs) / len(pairs)


def made(work: Path, settings: list[str]) -> dict[str, Path]:
    """Corpus and tokenizer, by `anadil run`."""
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "anadil", "run", "smoke", "--work", str(work), "--until", "tokenizer"]
    printed = subprocess.run(
        [*command, "-o", "json", *words], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": "off"},
    ).stdout  # fmt: skip
    return {word: Path(uri) for word, uri in json.loads(printed).items() if word in STAGES["trial"].reads}


def candidates(tokenizer: Path) -> list[Finalist]:
    """All candidates of a tokenizer artifact."""
    table = json.loads((tokenizer / "fertility.json").read_text(encoding="utf-8"))["candidates"]
    return [
        Finalist(strategy=entry["strategy"], name=name, folder=tokenizer / "candidates" / name, reason="")
        for name, entry in table.items()
    ]


def scores(recipe: Recipe, inputs: dict[str, Path], work: Path, steps: int) -> dict[str, float]:
    """Candidate -> bits per byte after a trial of so many steps."""
    job = Job(
        recipe=recipe, inputs=inputs, out=work / "out", work=work / f"trial-{steps}-{recipe.seed}",
        base_cache=work / "base", side_files=external_side_files(STAGES["trial"], recipe),
    )  # fmt: skip
    everybody = candidates(inputs["tokenizer"])
    texts, budget = read_texts(job, everybody), budget_of(recipe, steps)
    num_bytes = int(texts.num_bytes(TARGET).sum())
    found = {}
    for each in everybody:
        begin = time.monotonic()
        result = read_result(job.work / FOLDER, each.name) or try_finalist(
            job, each, texts, budget, Group(), pick_device()
        )
        found[each.name] = bits_per_byte(sum(result.nats[TARGET]), num_bytes)
        print(
            f"{each.name:14} {result.steps:5} steps of {steps}, {result.rows:6,} rows: {found[each.name]:.4f} bits per "
            f"byte ({time.monotonic() - begin:.0f} s)",
            flush=True,
        )
    return found


def main() -> None:
    """Print both rankings, and how far they agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--text", nargs="+", required=True, help="text of the target language")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--sizes", default="[512, 1024, 2048]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("anadil-work/trial-benchmark"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = [
        f"clean.inputs={json.dumps(options.text)}",
        "tokenizer.strategies=[base, extend, replace]",  # `tiny` has no token of another script to exchange
        f"tokenizer.vocab_sizes={options.sizes}",
        "finetune.inputs=[]",
        "clean.heldout_max_documents=100",
        f"storage.root={options.work.resolve()}",
    ]
    inputs = made(options.work.resolve(), settings)
    recipe = load_recipe(
        "smoke", [*settings, f"tokenizer.trial={{steps: {options.steps}}}", f"seed={options.seed}"]
    )
    cpu = time.process_time()
    short = scores(recipe, inputs, options.work, options.steps)
    long = scores(recipe, inputs, options.work, options.steps * options.times)
    for found, steps in ((short, options.steps), (long, options.steps * options.times)):
        print(f"after {steps} steps: {' < '.join(sorted(found, key=found.__getitem__))}")
    agreed = tau(list(short.values()), list(long.values()))
    print(f"Kendall's tau {agreed:.2f} over {len(short)} candidates; {time.process_time() - cpu:.0f} CPU s")


if __name__ == "__main__":
    main()
