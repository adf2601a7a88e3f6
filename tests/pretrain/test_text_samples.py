"""Texts that the model writes at each validation."""

import json
from pathlib import Path
from typing import Any

import torch

from anadil.model.load import load_model, load_tokenizer
from anadil.pretrain.run import run
from anadil.pretrain.validation import FILE, NUM_TOKENS
from tests.kit.pretraining import make_corpus, make_job, make_recipe
from tests.kit.pretraining_texts import PRETRAINING_TEXTS


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text(encoding="utf-8").splitlines()]


def test_a_run_keeps_what_the_model_writes_at_each_validation(tmp_path: Path, base: Path) -> None:
    recipe = make_recipe(base, validate_every=5)
    prompts = ("Azərbaycan dili", "Bu gün")
    recipe = recipe.model_copy(update={"evaluate": recipe.evaluate.model_copy(update={"prompts": prompts})})
    job = make_job(tmp_path, recipe)
    job.inputs["corpus"] = make_corpus(tmp_path / "scored", heldout=PRETRAINING_TEXTS)

    run(job)

    lines = lines_of(job.out)
    assert [line["step"] for line in lines] == [0, 4, 5, 10, 12]
    assert [each["prompt"] for each in lines[0]["texts"]] == list(prompts)
    assert lines[0]["texts"] != lines[-1]["texts"]
    assert lines[-1]["texts"][0]["text"] == greedy(job.out, prompts[0])
    assert FILE in job.varying


def greedy(folder: Path, prompt: str) -> str:
    """The same by transformers' own decoding."""
    model: Any = load_model(folder, torch.float32)
    tokenizer: Any = load_tokenizer(folder)
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer.encode(prompt, add_special_tokens=False)]])
    out = model.generate(ids, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=tokenizer.eos_token_id)
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def test_a_run_without_held_out_text_writes_none(tmp_path: Path, base: Path, whole: Path) -> None:
    job = make_job(tmp_path, make_recipe(base))

    run(job)

    assert not (job.out / FILE).exists()
