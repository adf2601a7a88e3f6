"""The lines of a whole run, as stages write them, without a stage that computes."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anadil.artifacts.artifact import Manifest
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.runtime import evidence
from anadil.runtime.tracking_spool import CLOSED, Tracker
from anadil.text.metrics import deciding_scores

SCORES = {
    "candidates": {
        "base": {"bits_per_byte": 5.08, "fertility": 6.3},
        "adapted": {"bits_per_byte": 1.36, "fertility": 1.7},
        "finetuned": {"bits_per_byte": 3.27, "fertility": 1.7},
    },
    "gate": {"passed": True, "checks": []},
}
STEPS = 20
NO_TRACKERS: Mapping[str, Tracker] = {}


def manifest(kind: str, content: str, **more: Any) -> Manifest:
    """A manifest whose digest follows from kind and content."""
    return Manifest(
        kind=kind, key="0" * 16, origin={"stage": kind}, files={"a": {"bytes": 1, "sha256": content}}, **more
    )


def artifacts(name: str) -> dict[str, Manifest]:
    """What a run makes; another name, other digests."""
    return {
        "corpus": manifest("corpus", name, records={"train": 328, "heldout": 35}),
        "model": manifest("model", name, figures={"loss": 3.68, "seconds": 9.0}),
        "adapter": manifest("adapter", name, figures={"loss": 0.01}),
    }


def write_pretrain(
    spool: Path, name: str, *, start: int = 1, stop: int = STEPS, tracker: Tracker | None = None
) -> Tracker:
    """Lines of training up to a step."""
    tracker = tracker or Tracker(spool / "pretrain.jsonl", "pretrain")
    made = artifacts(name)
    if start == 1:
        tracker.start()
        tracker.texts("run tags", evidence.run_tags(parse_recipe("", "r"), STAGES["pretrain"]))
        tracker.texts("run params", {"language": "az", "note": "postgresql://me:hunter2-and-more@db/x"})
        tracker.files({"recipe.yaml": "language: az\n"})
        uris = {"corpus": "s3://bucket/corpus/1"}
        evidence.tell_inputs(tracker, STAGES["pretrain"], {"corpus": made["corpus"]}, uris, {})
    for step in range(start, stop + 1):
        tracker.metrics({"loss": 9.0 / step, "tokens_per_s": 100.0}, step)
    return tracker


def end_pretrain(tracker: Tracker, name: str, folder: Path) -> None:
    """The last lines of training: the model."""
    made, uris = artifacts(name), {"corpus": "s3://bucket/corpus/1"}
    corpus, model = {"corpus": made["corpus"]}, "s3://bucket/model/1"
    evidence.tell_result(tracker, STAGES["pretrain"], made["model"], model, folder, corpus, uris, {})
    tracker.metrics({"loss": 3.68, "seconds": 9.0})
    tracker.end("FINISHED")


def write_scores(spool: Path, name: str, folder: Path, own: Mapping[str, Tracker] = NO_TRACKERS) -> None:
    """Lines of evaluate and report, or of those that have a tracker of their own."""
    made = artifacts(name)
    uris = {word: f"s3://bucket/{word}/1" for word in made}
    for stage in own or ("evaluate", "report"):
        time.sleep(0.005)  # stages begin one after another; a line says when, in ms
        tracker = own.get(stage) or Tracker(spool / f"{stage}.jsonl", stage)
        out = folder / stage
        out.mkdir(parents=True)
        tracker.start()
        evidence.tell_inputs(
            tracker, STAGES[stage], made, uris, {"file builtin:az/questions.jsonl": "0a" * 32}
        )
        if stage == "evaluate":
            (out / "scores.json").write_text(json.dumps(SCORES), encoding="utf-8")
        else:
            (out / "report.html").write_text(
                "<h1>Azerbaijani: what a tiny Llama learned</h1>", encoding="utf-8"
            )
            (out / "report.md").write_text(
                "# Title\n\nRelease the **adapted** model.\n\n## More\n", encoding="utf-8"
            )
        tracker.run_metrics(deciding_scores(SCORES))
        result = manifest(STAGES[stage].writes, name)
        read = {"scores": folder / "evaluate"}
        evidence.tell_result(tracker, STAGES[stage], result, f"s3://bucket/{stage}/1", out, made, uris, read)
        tracker.end("FINISHED")
    (spool / CLOSED).touch()
