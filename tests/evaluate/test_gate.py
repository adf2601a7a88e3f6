"""The gate on real small models, some of them made bad on purpose."""

import itertools
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from anadil.artifacts.scored_text import read_retained
from anadil.evaluate.run import run
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.text.corpus import write_documents

from .conftest import TEMPLATE, TEXTS, document, tiny_model, train_tokenizer

HELDOUT = [f"{first[:30]}{second[30:]}" for first, second in itertools.pairwise(TEXTS)]
Gate = Callable[..., dict[str, Any]]
NUM_NEW = 4
SMALL = {"min_documents": 5, "min_ended_rate": 0, "max_empty_rate": 0.6}
"""Limits for what is so small: no text ends within four tokens, and one of its six answers has no word."""


def taught(folder: Path, texts: Sequence[str], steps: int) -> Path:
    tokenizer = train_tokenizer(400)
    tokenizer.chat_template = TEMPLATE
    model = tiny_model(len(tokenizer)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    rows = [torch.tensor([[0, *tokenizer(text, add_special_tokens=False)["input_ids"], 1]]) for text in texts]
    for step in range(steps):
        ids = rows[step % len(rows)]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught(tmp_path_factory.mktemp("healthy"), TEXTS, 80)


def always_writing(token: str, source: Path, folder: Path, strength: float) -> Path:
    """A copy of a model that thinks one token likely whatever stood before it.

    Each embedding says the same in its first place, and the head reads it for that token alone.
    """
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    model: Any = LlamaForCausalLM.from_pretrained(source, tie_word_embeddings=False)
    (index,) = tokenizer(token, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        model.lm_head.weight[:, 0] = 0
        model.lm_head.weight[index, 0] = strength
        model.model.embed_tokens.weight[:, 0] = 3.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def gate(tmp_path: Path, healthy: Path) -> Gate:
    """Scores of a base (the healthy model), an adapted and perhaps a finetuned model."""

    def judged(
        base: Path | None = None, adapted: Path | None = None, finetuned: Path | None = None, **limits: Any
    ) -> dict[str, Any]:
        corpus, out = tmp_path / "corpus", tmp_path / "out"
        write_documents(corpus, "train", [document("Başqa bir mətn.")])
        write_documents(corpus, "heldout", [document(text, f"h{i}") for i, text in enumerate(HELDOUT)])
        out.mkdir()
        inputs = {"corpus": corpus, "model": adapted or healthy}
        if finetuned:
            (tmp_path / "adapter").mkdir()
            (tmp_path / "adapter/merged").symlink_to(finetuned)
            inputs["adapter"] = tmp_path / "adapter"
        recipe = Recipe.model_validate({
            "base": {"model": str(base or healthy)}, "pretrain": {"sequence_length": 128},
            "evaluate": {"max_new_tokens": NUM_NEW, "prompts": ["Bakı şəhəri"], "gate": SMALL | limits},
        })  # fmt: skip
        job = Job(recipe=recipe, inputs=inputs, out=out, work=tmp_path, base_cache=tmp_path / "cache")
        figures = run(job)
        scores: dict[str, Any] = json.loads((out / "scores.json").read_text(encoding="utf-8"))
        assert figures["gate"] == ("passed" if scores["gate"]["passed"] else "failed")
        assert figures["released"] == (scores["gate"]["released"] or "none")
        return scores

    return judged


def failed(scores: dict[str, Any]) -> set[str]:
    return {check["name"] for check in scores["gate"]["checks"] if check["enforced"] and not check["passed"]}


def value(scores: dict[str, Any], name: str) -> float:
    (measured,) = (check["value"] for check in scores["gate"]["checks"] if check["name"] == name)
    return float(measured)


def test_an_adapter_that_writes_only_quotation_marks_is_not_released(
    gate: Gate, healthy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quotes = always_writing('"', healthy, tmp_path / "quotes", 12.0)

    with caplog.at_level(logging.INFO):
        scores = gate(finetuned=quotes)

    answers = [one for one in scores["candidates"]["finetuned"]["generations"] if one["kind"] == "answer"]
    assert {one["text"] for one in answers if one["mode"] == "greedy"} == {'"' * NUM_NEW}
    # No chats are held out, so that running text decides too.
    assert {"finetuned.bits_per_byte", "finetuned.loops", "finetuned.empty_answers"} <= failed(scores)
    assert not any(name.startswith("adapted.") for name in failed(scores))
    assert (scores["gate"]["passed"], scores["gate"]["released"]) == (True, "adapted")
    verdicts = scores["gate"]["verdicts"]
    assert (verdicts["model"]["passed"], verdicts["adapter"]["passed"]) == (True, False)
    assert set(verdicts["adapter"]["failed"]) == failed(scores)
    assert "gate: finetuned.bits_per_byte is " in caplog.text
    assert "gate: the adapted model may be released" in caplog.text
    assert scores["differences"]["finetuned - adapted"]["value"] > 0


def test_english_that_is_lost_is_said_and_stops_the_release(
    gate: Gate, healthy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    english_base = taught(tmp_path / "english", [one.text[:90] for one in read_retained()], 50)

    with caplog.at_level(logging.INFO):
        scores = gate(base=english_base, adapted=healthy)

    english = {name: table["retained"]["en"] for name, table in scores["candidates"].items()}
    assert value(scores, "adapted.retained.en") == pytest.approx(english["adapted"] / english["base"])
    difference = scores["differences"]["adapted - base, retained en"]
    assert difference["value"] == pytest.approx(english["adapted"] - english["base"])
    assert difference["num_documents"] == len(read_retained())
    (check,) = (each for each in scores["gate"]["checks"] if each["name"] == "adapted.retained.en")
    assert check["interval"] == pytest.approx(
        [1 + difference[end] / english["base"] for end in ("low", "high")]
    )
    assert check["unsure"]
    assert failed(scores) == {"adapted.retained.en"}
    assert (scores["gate"]["passed"], scores["gate"]["released"]) == (False, None)
    assert "gate: not passed" in caplog.text
    said = (
        f"bits per byte on the retained text en: base {english['base']:.4f}, adapted {english['adapted']:.4f}"
    )
    assert said in caplog.text
    assert "gate: adapted.retained.en is " in caplog.text
