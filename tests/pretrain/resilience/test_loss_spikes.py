import json
import math
import random
from pathlib import Path

import pytest

from anadil.core.errors import RecipeError
from anadil.pretrain.data.order import only, sequences_of_step
from anadil.pretrain.resilience.loss_spikes import (
    WARM_UP,
    SpikeDetector,
    StepVerdict,
    write_documents_of_step,
)
from anadil.recipe.pretrain import Faults
from tests.kit.pretraining import make_corpus, make_tokenizer_artifact
from tests.kit.tokens import tokens_of_corpus

SKIP = Faults(on_anomaly="skip")


def calm(anomalies: SpikeDetector, steps: int, loss: float = 3.0, first: int = 1) -> None:
    for step in range(first, first + steps):
        assert anomalies.judge(step, loss, 1.0).finding == "fine"


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
    verdict = SpikeDetector(Faults()).judge(1, loss, norm)

    assert verdict.finding == "stop"
    assert verdict.reason == reason


def test_a_loss_ten_times_as_large_is_a_spike() -> None:
    anomalies = SpikeDetector(SKIP)
    calm(anomalies, WARM_UP)

    verdict = anomalies.judge(WARM_UP + 1, 30.0, 1.0)

    assert verdict.finding == "skip"
    assert verdict.reason == "the loss is 30, 10.0 times the median of the last 20"


def test_a_new_phase_is_given_time_to_find_what_is_usual() -> None:
    anomalies = SpikeDetector(Faults())
    calm(anomalies, 200)

    border = anomalies.judge(201, 7.0, 1.0, phase=1)

    assert border.finding == "fine"


@pytest.mark.parametrize("noise", [0.05, 0.15])
def test_clean_curves_raise_no_alarm(noise: float) -> None:
    draw = random.Random(7)

    for _ in range(5):
        anomalies = SpikeDetector(Faults())
        for step in range(1, 1_001):
            # From a random model's ln 4096, over a warm-up that makes it worse, down to 3.
            usual = 3 + 5.3 * math.exp(-step / 150) + 1.5 * math.exp(-(((step - 30) / 10) ** 2))
            loss = usual * draw.gauss(1, noise)
            assert anomalies.judge(step, loss, 1.0, phase=step // 500).finding == "fine"


def test_a_second_roll_back_leaves_out_what_came_after_the_first() -> None:
    anomalies = SpikeDetector(SKIP)
    calm(anomalies, 30)
    anomalies.skip_since(anomalies.judge(31, math.nan, 1.0), 30)
    first = anomalies.batch_of(30)
    again = anomalies.judge(31, math.inf, 1.0)

    anomalies.skip_since(again, 25)

    assert first == 31
    left = [anomalies.batch_of(step) for step in range(23, 27)]
    assert left == [23, 24, 32, 33]  # batches 25 to 31 are left out, and 30 only once


def test_a_roll_back_forgets_the_losses_after_the_copy() -> None:
    straight, back = SpikeDetector(SKIP), SpikeDetector(SKIP)
    calm(straight, 28)
    calm(back, 30)

    back.skip_since(back.judge(31, math.nan, 1.0), 28)

    assert back.state()["losses"] == straight.state()["losses"]


def test_too_many_roll_backs_end_the_run_with_advice() -> None:
    anomalies = SpikeDetector(Faults(on_anomaly="skip", most_skips=2))
    calm(anomalies, 30)
    for _ in range(2):
        anomalies.skip_since(anomalies.judge(31, math.nan, 1.0), 30)

    with pytest.raises(RecipeError) as caught:
        anomalies.skip_since(anomalies.judge(31, math.nan, 1.0), 30)

    text = str(caught.value)
    assert "the loss is nan at step 31, after 2 roll-backs (pretrain.faults.most_skips)" in text
    assert "lower the learning rate of the phase (pretrain.phases[0].lr) or clean the data" in text


def test_a_resume_judges_as_the_run_that_was_not_interrupted() -> None:
    whole = SpikeDetector(SKIP)
    calm(whole, 30)
    whole.skip_since(whole.judge(31, math.nan, 1.0), 25)
    resumed = SpikeDetector(SKIP)

    resumed.restore(json.loads(json.dumps(whole.state())))

    assert resumed.state() == whole.state()
    assert resumed.batch_of(40) == whole.batch_of(40) == 46
    assert resumed.judge(26, 6.1, 1.0) == whole.judge(26, 6.1, 1.0)


def test_the_documents_of_a_step_are_listed_with_their_text(tmp_path: Path) -> None:
    corpus, tokenizer = make_corpus(tmp_path / "corpus"), make_tokenizer_artifact(tmp_path / "tokenizer")
    packed = tokens_of_corpus(corpus, tokenizer, tmp_path / "work", length=64).packed
    chosen = sequences_of_step(0, batch_size=2, blocks=packed.blocks, seed=1)
    verdict = StepVerdict(finding="stop", step=1, loss=math.nan, norm=math.inf, reason="the loss is nan")

    path = write_documents_of_step(tmp_path, verdict, only(packed), chosen, tokenizer)

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
