"""Bits per byte of held-out text in a run: the base's before the first step, then where they are due."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anadil.core.errors import Stopped
from anadil.model.load import load_model, load_tokenizer
from anadil.model.loss import summed_loss
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.run import run
from anadil.pretrain.validation import FILE, NUM_TOKENS, SCORE, validation_of
from anadil.runtime.tracking_spool import Tracker
from anadil.text.metrics import bits_per_byte
from tests.kit.pretraining import (
    SHORT,
    generations,
    losses,
    make_corpus,
    make_job,
    make_recipe,
    run_in_child,
    run_in_several,
)
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.tokens import tokens_of_corpus


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """A corpus whose held-out part is not empty."""
    return make_corpus(tmp_path / "scored", heldout=PRETRAINING_TEXTS)


def scores(out: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (out / "training.jsonl").read_text().splitlines()]
    return {line["step"]: line[SCORE] for line in lines if SCORE in line}


def test_a_score_of_the_held_out_part_is_written_also_where_no_line_is_due(
    tmp_path: Path, base: Path, scored: Path
) -> None:
    job = make_job(tmp_path, make_recipe(base, validate_every=5, log_every=4))
    job.inputs["corpus"] = scored

    run(job)

    found = scores(job.out)
    assert found.keys() == {0, 4, 5, 10, 12}  # the base, each fifth step, and the end of each phase
    assert found[12] < found[4] < found[0]
    summary = json.loads((job.out / "training.json").read_text())
    assert (summary[SCORE], summary[f"first_{SCORE}"]) == (found[12], found[0])
    assert summary["time"]["causes"]["validation"]["seconds"] > 0


class Points(Tracker):
    """Keeps what a run tells of its steps."""

    def __init__(self) -> None:
        super().__init__(None)
        self.scores: list[tuple[int | None, float]] = []

    def metrics(self, values: Any, step: int | None = None) -> None:
        self.scores += [(step, values[SCORE])] if SCORE in values else []


def test_the_curve_begins_with_the_base_once_and_not_again_after_a_resume(
    tmp_path: Path, base: Path, whole: Path, scored: Path
) -> None:
    recipe, points = make_recipe(base, validate_every=10), Points()
    job = make_job(tmp_path, recipe, tracker=points)
    job.inputs["corpus"] = scored
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANADIL_INJECT", json.dumps({"terminate": {"step": 5, "section": "forward"}}))
        run_in_child(job)
    begun = scores(job.work)
    run(job)

    tokens = tokens_of_corpus(scored, job.inputs["tokenizer"], tmp_path / "tokens")
    validation = validation_of(tokens, recipe.pretrain, rows=2)
    assert validation is not None
    model = load_model(base)

    def nats(batch: Batch) -> torch.Tensor:
        hidden = model.model(batch.input_ids, position_ids=batch.position_ids).last_hidden_state
        return summed_loss(hidden, model.lm_head.weight, batch.labels)

    assert begun == {0: scores(job.out)[0], 4: scores(job.out)[4]}
    assert begun[0] == pytest.approx(
        bits_per_byte(validation.nats(nats) or 0.0, validation.num_bytes), rel=1e-5
    )
    assert [step for step, _ in points.scores] == [10, 12]
    assert losses(job.out) == losses(whole)


def test_a_run_that_was_killed_before_its_first_checkpoint_scores_its_base_again(
    tmp_path: Path, base: Path, scored: Path
) -> None:
    job = make_job(
        tmp_path, make_recipe(base, validate_every=10, phases=SHORT[:1]), tracker=(points := Points())
    )
    job.inputs["corpus"] = scored
    (job.work / "training.jsonl").write_text(json.dumps({"step": 0, SCORE: 99.0}) + "\n")

    run(job)

    assert points.scores[0] == (0, scores(job.out)[0])
    assert scores(job.out)[0] < 99


@pytest.mark.parametrize("layout", [{"shard": 2}, {"pipeline": 2}])
def test_the_base_has_the_same_score_however_it_is_laid_out(
    tmp_path: Path, untied: Path, scored: Path, layout: dict[str, int]
) -> None:
    jobs = {
        name: make_job(
            tmp_path, make_recipe(untied, validate_every=10, phases=SHORT[:1], parallelism=split), name
        )
        for name, split in (("one", {}), ("two", layout))
    }
    for job in jobs.values():
        job.inputs["corpus"] = scored

    run(jobs["one"])
    codes = run_in_several(jobs["two"])

    assert codes == [0, 0]
    assert scores(jobs["two"].out) == pytest.approx(scores(jobs["one"].out), rel=1e-5)
    assert 0 in scores(jobs["two"].out)


def test_sigterm_in_a_validation_leaves_it_out_and_loses_nothing_else(
    tmp_path: Path, base: Path, whole: Path, scored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path, make_recipe(base, validate_every=5))
    job.inputs["corpus"] = scored

    with monkeypatch.context() as patch:
        patch.setenv("ANADIL_INJECT", json.dumps({"terminate": {"step": 5, "section": "validate"}}))
        code = run_in_child(job)
    saved = generations(job)[0].name
    run(job)

    assert code == Stopped.exit_code
    assert saved == "step-00000005"
    assert losses(job.out) == losses(whole)
    assert scores(job.out).keys() == {0, 4, 10, 12}


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("prompts", [("Azərbaycan dili", "Bu gün"), ()])
def test_a_run_keeps_what_the_model_writes_at_each_validation(
    tmp_path: Path, base: Path, prompts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A language without prompts of its own continues held-out documents.
    monkeypatch.setattr("anadil.pretrain.validation.load_language", lambda _: SimpleNamespace(prompts=()))
    recipe = make_recipe(base, validate_every=5)
    recipe = recipe.model_copy(update={"evaluate": recipe.evaluate.model_copy(update={"prompts": prompts})})
    job = make_job(tmp_path, recipe)
    job.inputs["corpus"] = make_corpus(tmp_path / "scored", heldout=PRETRAINING_TEXTS)
    # A run that was killed before its first checkpoint.
    (job.work / FILE).write_text(json.dumps({"step": 0, "texts": []}) + '\n{"step": 4, "te')

    run(job)

    lines = lines_of(job.out)
    assert [line["step"] for line in lines] == [0, 4, 5, 10, 12]
    written = [each["prompt"] for each in lines[0]["texts"]]
    assert written == list(prompts) or (
        not prompts and len(written) == 3 and all(any(text.startswith(each) for text in PRETRAINING_TEXTS) for each in written)
    )  # fmt: skip
    assert lines[0]["texts"] != lines[-1]["texts"]
    assert lines[-1]["texts"][0]["text"] == greedy(job.out, written[0])
    assert FILE in job.varying


def greedy(folder: Path, prompt: str) -> str:
    """The same by transformers' own decoding."""
    model: Any = load_model(folder, torch.float32)
    tokenizer: Any = load_tokenizer(folder)
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer.encode(prompt, add_special_tokens=False)]])
    out = model.generate(ids, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=tokenizer.eos_token_id)
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def test_a_run_without_held_out_text_writes_none(whole: Path) -> None:
    assert not (whole / FILE).exists()
