"""Tokenizer, chats and answers of a run, for pages that show them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from anadil.artifacts import artifact
from anadil.artifacts.uri import MANIFEST
from anadil.runtime.run_record import StepRecord
from tests.kit import report_run
from tests.kit.watching import put_record

STAGES = ("tokenizer", "finetune", "evaluate")


def put_trained(root: Path, text: str, place: str = "") -> str:
    """Write the artifacts of a run whose every text is `text`; return the run's id.

    Args:
        root: Directory of artifacts and record.
        text: Text of chats, samples of the mask, questions and answers.
        place: Address that `root` will have for whoever reads it.
    """
    place = place or str(root)
    chats = [{"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text}]}]
    (root / "chats.jsonl").write_text("".join(f"{json.dumps(chat)}\n" for chat in chats), encoding="utf-8")
    audit = report_run.audit() | {"samples": [f"{text}⟦{text}⟧"], "dropped_first": {"too_long": [text]}}
    made = report_run.artifacts(
        root / "made", audit=audit, scores=_scores(text),
        made_by={"language": "az", "finetune": {"inputs": [f"{place}/chats.jsonl"]}},
    )  # fmt: skip
    for name in ("base", "extend-256"):
        _put_tokenizer(made["tokenizer"] / "candidates" / name)
    (made["tokenizer"] / MANIFEST).unlink()
    artifact.seal(made["tokenizer"], kind="tokenizer", origin={"stage": "tokenizer"})
    kinds = {"tokenizer": "tokenizer", "finetune": "adapter", "evaluate": "scores"}
    steps = {
        stage: StepRecord(stage=stage, status="finished", uri=f"{place}/made/{kinds[stage]}", seconds=1)
        for stage in STAGES
    }
    return put_record(root, "20260101-120000-3", root=place, steps=steps, stages=STAGES, exit_code=0)


def _scores(text: str) -> dict[str, Any]:
    scores = report_run.scores(text=text)
    for name, candidate in scores["candidates"].items():
        candidate["generations"].append(report_run.answer(name, text, (False, text)) | {"text": text})
    return scores


def _put_tokenizer(folder: Path) -> None:
    """Write a tokenizer of bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
