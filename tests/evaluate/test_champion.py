"""The champion scored beside the candidates."""

from pathlib import Path

import pytest

from anadil.core.errors import PreflightError
from anadil.evaluate.models import encode_with_champion, open_model
from anadil.text.corpus import write_documents

from .conftest import TEXTS, document, save_model
from .test_run import job_on, scored


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "inputs"
    heldout = [document(text, f"h{i}") for i, text in enumerate(TEXTS[:4])]
    write_documents(folder / "corpus", "train", [document(text) for text in TEXTS[4:]])
    write_documents(folder / "corpus", "heldout", heldout)
    save_model(folder / "base", 300)
    save_model(folder / "model", 420, seed=1)
    save_model(folder / "champion/merged", 420, seed=2, chat=True)
    return folder


def test_the_champion_is_a_candidate_on_the_same_documents(inputs: Path, tmp_path: Path) -> None:
    job = job_on(inputs, tmp_path / "out", gate={"min_documents": 1})
    del job.inputs["adapter"]
    job.inputs["champion"] = inputs / "champion"

    scores, _ = scored(job)

    assert list(scores["candidates"]) == ["base", "adapted", "champion"]
    champion, adapted = scores["candidates"]["champion"], scores["candidates"]["adapted"]
    assert champion["num_bytes"] == adapted["num_bytes"]
    answers = [one for one in champion["generations"] if one["kind"] == "answer"]
    assert {one["chat"] for one in answers} == {True}
    (check,) = (
        each for each in scores["gate"]["checks"] if each["name"] == "adapted.bits_per_byte_to_champion"
    )
    assert check["value"] == pytest.approx(adapted["bits_per_byte"] / champion["bits_per_byte"])
    assert check["interval"][0] < check["value"] < check["interval"][1]
    assert scores["differences"]["adapted - champion"]["num_documents"] == 4


def test_a_champion_that_cannot_be_scored_is_said_and_left_out(
    inputs: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = [open_model("base", inputs / "base"), open_model("adapted", inputs / "model")]

    def refuse(config: object, name: str) -> None:
        raise PreflightError(f"{name}: is a mixture of experts")

    monkeypatch.setattr("anadil.evaluate.models.refuse_mixture", refuse)
    rest, encoded = encode_with_champion(candidates, inputs / "champion", [document(TEXTS[0])])

    assert [each.name for each in rest] == list(encoded.ids) == ["base", "adapted"]
    assert "is a mixture of experts; candidates are not compared with it" in caplog.text
