import json
import math
import random
from pathlib import Path

import pytest

from anadil.core.errors import RecipeError
from anadil.pretrain.data.packing import pack, sequences_of_step
from anadil.pretrain.data.tokens import token_stream
from anadil.pretrain.resilience.loss_spikes import (
    WARM_UP,
    Anomalies,
    StepAction,
    StepVerdict,
    decoder,
    refuse,
    write_documents_of_step,
)
from anadil.recipe.pretrain import Faults
from tests.kit.pretraining import make_corpus, make_tokenizer_artifact

SKIP = Faults(on_anomaly="skip")
SMOKE = """
8.64 8.50 8.36 8.08 7.99 7.84 7.66 7.35 7.65 7.80 7.53 7.63 7.67 7.64 7.49 7.55 7.37 7.57 7.28 7.44 7.38
7.29 7.44 7.37 7.30 7.14 7.30 7.34 7.16 7.17 7.33 7.01 7.08 7.18 6.98 7.02 6.91 6.97 7.02 7.13 7.01 6.94
7.15 7.00 6.99 7.02 7.01 7.10 6.98 7.05 7.09 6.85 7.03 6.87 7.02 6.87 7.02 6.89 6.99 6.99 6.95 6.95 6.97
7.19 6.91 7.05 6.83 6.89 6.74 6.66 6.58 6.77 6.50 6.71 6.78 6.75 6.55 6.53 6.57 6.80 6.39 6.67 6.72 6.68
6.58 6.54 6.44 6.47 6.48 6.21 6.44 6.14 6.34 6.63 6.42 6.30 6.26 6.19 6.46 6.50 6.19 6.53 6.32 6.41 6.48
6.63 6.16 6.11 6.00 6.35 6.07 6.15 6.15 6.11 5.86 6.13 6.44 6.24 6.23 6.19 6.42 6.13 5.99 5.88 6.26 6.26
6.03 6.00 5.82 6.14 5.87 5.73 6.15 6.19 6.10 6.10 5.52 5.54 5.72 5.29 5.40 5.58 5.59 5.79 5.35 6.08 5.83
5.92 5.57 5.34 5.46 5.79 5.56 5.46 5.57 5.33 5.07 5.41 5.24 5.88 5.19 5.40 5.18 5.19 5.80 5.63 5.51 6.11
5.45 5.36 5.14 5.13 5.55 5.50 5.21 5.43 5.62 4.97 5.40 5.04 5.30 5.05 5.48 5.47 5.12 5.59 4.91 5.61 5.39
5.13 4.96 4.75 4.84 4.94 5.45 4.85 5.62 5.32 4.77 5.43 5.49 4.97 5.19 4.76 5.19 4.74 4.71 5.22 5.05 4.66
4.90 4.47 4.94 4.46 4.83 4.12 5.32 4.96 4.82 5.15 5.23 4.99 4.90 4.82 4.34 5.01 4.96 4.04 4.94 4.50 4.10
4.81 4.98 4.13 4.93 4.94 4.71 3.97 4.29 4.87 4.27 4.43 4.57 4.53 4.88 5.34 4.39 4.34 5.13 4.78 5.03 4.54
4.63 4.67 4.64 4.87 4.17 5.37 4.58 4.41 4.81 4.91 4.28 4.50 5.16 4.06 4.29 4.76 4.56 4.67 4.68 4.50 3.79
4.19 4.26 4.19 4.04 4.91 4.32 4.06 3.84 4.55 4.59 4.15 3.98 4.23 4.20 4.69 4.49 4.51 4.09 3.88 3.74 4.33
4.53 4.55 4.30 4.00 4.01 4.31 3.89 5.00 4.28 4.34 4.52 4.29 4.74 3.91 4.87 4.61 4.33 4.27 4.23 4.48 3.93
4.44 4.22 3.92 4.17 4.49 4.83 4.04 4.32 3.74 3.80 4.22 4.11 3.86 4.55 4.44 3.96 4.07 3.87 4.16 4.83 3.99
3.83 4.28 3.68 4.62 4.05 2.93 4.16 4.01 3.73 4.08 3.98 3.63 4.19 4.25 4.79 4.73 5.10 3.51 3.62 3.45 3.86
3.47 4.44 3.97
"""
"""Losses of every step of the recipe `smoke` on a CPU; its second phase begins at step 61."""


def calm(anomalies: Anomalies, steps: int, loss: float = 3.0, first: int = 1) -> None:
    for step in range(first, first + steps):
        assert anomalies.judge(step, loss, 1.0).finding is StepAction.FINE


@pytest.mark.parametrize(
    ("loss", "norm", "reason"),
    [
        (math.nan, 1.0, "the loss is nan"),
        (math.inf, 1.0, "the loss is inf"),
        (3.0, math.nan, "the gradient's norm is nan"),
        (3.0, math.inf, "the gradient's norm is inf"),
    ],
)
def test_what_is_no_number_is_found_in_the_first_step(loss: float, norm: float, reason: str) -> None:
    verdict = Anomalies(Faults()).judge(1, loss, norm)

    assert verdict.finding is StepAction.STOP
    assert verdict.reason == reason


def test_a_loss_ten_times_as_large_is_a_spike() -> None:
    anomalies = Anomalies(SKIP)
    calm(anomalies, WARM_UP)

    verdict = anomalies.judge(WARM_UP + 1, 30.0, 1.0)

    assert verdict.finding is StepAction.SKIP
    assert verdict.reason == "the loss is 30, 10.0 times the median of the last 20"


def test_a_new_phase_is_given_time_to_find_what_is_usual() -> None:
    anomalies = Anomalies(Faults())
    calm(anomalies, 200)

    border = anomalies.judge(201, 7.0, 1.0, phase=1)

    assert border.finding is StepAction.FINE


def test_the_losses_of_a_real_run_raise_no_alarm_and_leave_room() -> None:
    losses = [float(word) for word in SMOKE.split()]

    for ratio in (1.2, 2.0):
        anomalies = Anomalies(Faults(spike_ratio=ratio))
        for step, loss in enumerate(losses, 1):
            assert anomalies.judge(step, loss, 1.0, phase=step > 60).finding is StepAction.FINE


@pytest.mark.parametrize("noise", [0.05, 0.15])
def test_clean_curves_raise_no_alarm(noise: float) -> None:
    draw = random.Random(7)

    for _ in range(5):
        anomalies = Anomalies(Faults())
        for step in range(1, 1_001):
            # From a random model's ln 4096, over a warm-up that makes it worse, down to 3.
            usual = 3 + 5.3 * math.exp(-step / 150) + 1.5 * math.exp(-(((step - 30) / 10) ** 2))
            loss = usual * draw.gauss(1, noise)
            assert anomalies.judge(step, loss, 1.0, phase=step // 500).finding is StepAction.FINE


def test_after_a_roll_back_the_batches_since_the_copy_are_left_out() -> None:
    anomalies = Anomalies(SKIP)
    calm(anomalies, 30)
    verdict = anomalies.judge(31, math.nan, 1.0)

    anomalies.rolled_back(verdict, 28)

    # Steps 29, 30 and 31 had batches 28, 29 and 30.
    assert [anomalies.batch_of(step) for step in (27, 28, 29)] == [27, 31, 32]
    assert anomalies.num_skips == 1


def test_a_second_roll_back_leaves_out_what_came_after_the_first() -> None:
    anomalies = Anomalies(SKIP)
    calm(anomalies, 30)
    anomalies.rolled_back(anomalies.judge(31, math.nan, 1.0), 30)
    first = anomalies.batch_of(30)
    again = anomalies.judge(31, math.inf, 1.0)

    anomalies.rolled_back(again, 25)

    assert first == 31
    left = [anomalies.batch_of(step) for step in range(23, 27)]
    assert left == [23, 24, 32, 33]  # batches 25 to 31 are left out, and 30 only once


def test_a_roll_back_forgets_the_losses_after_the_copy() -> None:
    straight, back = Anomalies(SKIP), Anomalies(SKIP)
    calm(straight, 28)
    calm(back, 30)

    back.rolled_back(back.judge(31, math.nan, 1.0), 28)

    assert back.state()["losses"] == straight.state()["losses"]


def test_too_many_roll_backs_end_the_run_with_advice() -> None:
    anomalies = Anomalies(Faults(on_anomaly="skip", most_skips=2))
    calm(anomalies, 30)
    for _ in range(2):
        anomalies.rolled_back(anomalies.judge(31, math.nan, 1.0), 30)

    with pytest.raises(RecipeError) as caught:
        anomalies.rolled_back(anomalies.judge(31, math.nan, 1.0), 30)

    text = str(caught.value)
    assert "the loss is nan at step 31, after 2 roll-backs (pretrain.faults.most_skips)" in text
    assert "lower the learning rate of the phase (pretrain.phases[0].lr) or clean the data" in text


def test_a_resume_judges_as_the_run_that_was_not_interrupted() -> None:
    whole = Anomalies(SKIP)
    calm(whole, 30)
    whole.rolled_back(whole.judge(31, math.nan, 1.0), 25)
    resumed = Anomalies(SKIP)

    resumed.restore(json.loads(json.dumps(whole.state())))

    assert resumed.state() == whole.state()
    assert resumed.batch_of(40) == whole.batch_of(40) == 46
    assert resumed.judge(26, 6.1, 1.0) == whole.judge(26, 6.1, 1.0)


def test_the_error_names_numbers_step_and_the_list_of_documents() -> None:
    verdict = StepVerdict(finding=StepAction.STOP, step=7, loss=math.nan, norm=2.5, reason="the loss is nan")

    error = refuse(verdict, 0.0024, "work/anomaly-step-7.json")

    assert error.exit_code == 2
    assert "the loss is nan at step 7 (gradient norm 2.5, learning rate 0.0024)" in str(error)
    assert "listed in work/anomaly-step-7.json" in str(error)
    assert "pretrain.faults.on_anomaly=skip" in str(error)


def test_the_documents_of_a_step_are_listed_with_their_text(tmp_path: Path) -> None:
    corpus, tokenizer = make_corpus(tmp_path / "corpus"), make_tokenizer_artifact(tmp_path / "tokenizer")
    packed = pack(token_stream(corpus, tokenizer, tmp_path / "work", write=True), 64)
    chosen = sequences_of_step(0, batch_size=2, num_sequences=packed.num_sequences, seed=1)
    verdict = StepVerdict(
        finding=StepAction.STOP, step=1, loss=math.nan, norm=math.inf, reason="the loss is nan"
    )

    path = write_documents_of_step(tmp_path, verdict, packed, chosen, decoder(tokenizer))

    told = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == "anomaly-step-1.json"
    assert (told["loss"], told["grad_norm"]) == ("nan", "inf")
    assert [each["sequence"] for each in told["sequences"]] == chosen.tolist()
    listed = [document for each in told["sequences"] for document in each["documents"]]
    assert sum(document["tokens"] for document in listed) == packed.targets_of(chosen)
    assert all(len(document["text"]) <= 200 for document in listed)
    begins = [document["text"] for document in listed if not document["first_token"]]
    assert all(text.startswith("<|begin_of_text|>") for text in begins)
    assert any(
        "Gəncəyə" in text or "Kitabxanada" in text or "Bakı" in text or "hava" in text for text in begins
    )


def test_without_a_tokenizer_the_documents_are_listed_by_number(tmp_path: Path) -> None:
    corpus, tokenizer = make_corpus(tmp_path / "corpus"), make_tokenizer_artifact(tmp_path / "tokenizer")
    packed = pack(token_stream(corpus, tokenizer, tmp_path / "work", write=True), 64)
    chosen = sequences_of_step(0, batch_size=1, num_sequences=packed.num_sequences, seed=1)
    verdict = StepVerdict(finding=StepAction.SKIP, step=3, loss=9.0, norm=1.0, reason="a spike")

    told = json.loads(write_documents_of_step(tmp_path, verdict, packed, chosen).read_text())

    assert set(told["sequences"][0]["documents"][0]) == {"document", "first_token", "tokens"}
