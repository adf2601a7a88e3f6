"""A retraining that is killed at random moments and started again, against one that is not, as a Markdown table.

ANADIL_DATA=DIR python benchmarks/retrain/kills.py [--kills 20] [--in-a-row] [--work DIR]

A tiny champion is made once. Each time its directory is put back, `anadil retrain` gets SIGKILL with all its processes at
a moment drawn evenly from the life of an uninterrupted one, and the same command runs to its end.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]

from benchmarks.stage_runs import documents, write_lines  # noqa: E402  scripts are installed nowhere

DOCUMENTS = 64
"""Documents of the first run. A week has half as many."""
LONGEST = 2_000
"""Characters of a document."""
NAME = "anadil-az"


def recipe(work: Path) -> Path:
    """Write the recipe, as JSON, which is YAML."""
    settings: dict[str, Any] = {
        "language": "az",
        "base": {"model": "tiny"},
        "clean": {"inputs": [str(work / "text/*.jsonl")], "workers": 1},
        "tokenizer": {"strategies": ["base"]},
        "pretrain": {
            "phases": [{"trains": "all", "steps": 12, "lr": 1e-3}],
            "schedule": "wsd", "batch_size": 4, "sequence_length": 128, "checkpoint_every": 4, "validate_every": 0,
        },
        # So few steps lose some English, and a week that is refused moves no alias.
        "evaluate": {
            "max_new_tokens": 8,
            "gate": {"min_documents": 1, "max_loop_rate": 1, "max_retained_ratio": 9, "max_champion_retained_ratio": 9},
        },
    }  # fmt: skip
    path = work / "recipe.yaml"
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


def add_text(work: Path, name: str, first: int, count: int) -> None:
    """Write a file of documents where the recipe reads."""
    texts = [text[:LONGEST] for _, text in documents("az")][first : first + count]
    (work / "text").mkdir(parents=True, exist_ok=True)
    write_lines(work / f"text/{name}.jsonl", [{"text": text} for text in texts])


def started(work: Path, *command: str) -> subprocess.Popen[str]:
    """Start a command of the product in a process group of its own."""
    registry = {"MLFLOW_TRACKING_URI": f"sqlite:///{work}/mlflow.db", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-m", "anadil", *command], env=os.environ | registry, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], seconds: float | None = None) -> tuple[str, bool]:
    """Return the output of a command, and True if it was killed after some seconds; another failure ends the benchmark."""
    try:
        out, log = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "", True
    if process.returncode:
        sys.exit(f"{process.args} ends with {process.returncode}: {log[-3_000:]}")
    return out, False


def state(work: Path) -> dict[str, Any]:
    """Return what a retraining left: aliases, versions with digests, outcome, and digests of artifacts by kind."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{work}/mlflow.db", f"sqlite:///{work}/mlflow.db")
    model = client.get_registered_model(NAME)
    versions = {
        each.version: each.tags["anadil.sha256"] for each in client.search_model_versions(f"name = '{NAME}'")
    }
    kinds = ("corpus", "tokens", "model", "scores")
    folders = {kind: sorted(path.parent for path in work.glob(f"{kind}/*/manifest.json")) for kind in kinds}
    # Its name follows from the report, which has times; there is one for each retraining.
    outcomes = [
        json.loads(file.read_text(encoding="utf-8"))["outcome"]
        for file in work.glob("release/*/release.json")
    ]
    return {
        "aliases": dict(model.aliases),
        "versions": versions,
        "outcomes": sorted(outcomes),
        "artifacts": {kind: [each.name for each in found] for kind, found in folders.items()},
        "locks": [each.name for each in client.search_registered_models() if each.name != NAME],
        "partial": sorted(str(path.relative_to(work)) for path in work.rglob("*.partial")),
    }


def last_made(work: Path) -> str:
    """Return the kind of the newest artifact."""
    made = sorted(work.glob("*/*/manifest.json"), key=os.path.getmtime)
    return made[-1].parents[1].name if made else "none"


def champion(work: Path) -> None:
    """Make and promote the first model, and write the text of a week."""
    work.mkdir(parents=True)
    add_text(work, "first", 0, DOCUMENTS)
    out, _ = ended(started(work, "run", str(recipe(work)), "--work", str(work), "-o", "json"))
    ended(started(work, "promote", json.loads(out)["model"], "--as", "champion"))
    add_text(work, "week", DOCUMENTS, DOCUMENTS // 2)


def main() -> None:
    """Kill and repeat, and print the table."""
    made = argparse.ArgumentParser(description="Kill a retraining at random moments, and compare its end.")
    made.add_argument("--kills", type=int, default=20)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--in-a-row", action="store_true", help="kill the repetitions as well, until one ends")
    made.add_argument("--work", type=Path, default=Path("kills"), help="default: %(default)s")
    asked = made.parse_args()
    work, kept = asked.work.resolve() / "work", asked.work.resolve() / "kept"
    if not kept.exists():
        shutil.rmtree(work, ignore_errors=True)
        champion(work)
        shutil.copytree(work, kept, symlinks=True)
    put_back(work, kept)
    before = time.monotonic()
    ended(retraining(work))
    whole = time.monotonic() - before
    expected = state(work)
    print(f"uninterrupted: {whole:.0f} s, {expected['aliases']}, {expected['outcomes']}\n")
    print("| killed after, s (last artifact by then) | same end |")
    print("|---|---|")
    draw, kills, equal, runs = random.Random(asked.seed), 0, 0, 0  # noqa: S311  no secret
    while kills < asked.kills:
        put_back(work, kept)
        moments = kill(work, draw, whole, asked.kills - kills if asked.in_a_row else 1)
        ended(retraining(work))
        kills, runs = kills + len(moments), runs + 1
        same = state(work) == expected
        equal += same
        print(f"| {', '.join(moments) or 'it had ended'} | {'yes' if same else state(work)} |", flush=True)
    print(f"\n{kills} kills, {equal} of {runs} retrainings with the same end")


def put_back(work: Path, kept: Path) -> None:
    """Set the directory back to the champion and the text of a week."""
    shutil.rmtree(work)
    shutil.copytree(kept, work, symlinks=True)


def retraining(work: Path) -> subprocess.Popen[str]:
    """Start the retraining."""
    return started(work, "retrain", str(work / "recipe.yaml"), "--work", str(work), "-o", "json")


def kill(work: Path, draw: random.Random, whole: float, most: int) -> list[str]:
    """Kill a retraining and its repetitions until one ends, so often at most; return the moments with what was there."""
    moments: list[str] = []
    while len(moments) < most:
        moment = draw.uniform(0, whole)
        if not ended(retraining(work), moment)[1]:
            break
        moments.append(f"{moment:.1f} ({last_made(work)})")
    return moments


if __name__ == "__main__":
    main()
