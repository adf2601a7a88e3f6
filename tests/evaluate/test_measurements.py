"""A retraining takes what the champion's run measured of the base and of the champion."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.cli.main import main
from anadil.core.errors import IntegrityError, PreflightError
from anadil.evaluate import bits_per_byte
from anadil.evaluate.models import FILE, encode_with_champion, open_model, read_measurements
from anadil.evaluate.preference.votes import read_key
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.text.corpus import write_documents

from .conftest import TEXTS, document, save_model
from .test_run import job_on, scored

CHAT = {"messages": [{"role": "user", "content": "Nə var?"}, {"role": "assistant", "content": TEXTS[5][:20]}]}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and the scores of a run of the first of them, which was released."""
    folder = tmp_path_factory.mktemp("first")
    write_documents(folder / "corpus", "train", [document(text) for text in TEXTS[6:]])
    write_documents(
        folder / "corpus", "heldout", [document(text, f"h{i}") for i, text in enumerate(TEXTS[:4])]
    )
    (folder / "questions.jsonl").write_text(json.dumps(CHAT) + "\n", encoding="utf-8")
    save_model(folder / "base", 300)
    for name, seed in (("model", 1), ("next", 2)):
        save_model(folder / name, 420, seed=seed)
        artifact.seal(folder / name, kind="model", origin={"seed": str(seed)})
    job = job_of(folder, folder / "scores")
    scored(job)
    artifact.seal(job.out, kind="scores", origin={})
    return folder


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the candidates whose weights are loaded."""
    from anadil.evaluate import models

    listed: list[str] = []
    load = models.load_for_scoring

    def noted(path: Path, name: str) -> Any:
        listed.append(name)
        return load(path, name)

    monkeypatch.setattr(models, "load_for_scoring", noted)
    return listed


def job_of(folder: Path, out: Path, champion: Path | None = None, **evaluate: Any) -> Job:
    """Return the job of a week: that of the first, or of a retraining of its model with its scores at `champion`."""
    job = job_on(folder, out, gate={"min_documents": 1}, **evaluate)
    questions = str(folder / "questions.jsonl")
    inputs = {"corpus": folder / "corpus", "model": folder / ("next" if champion else "model")}
    recipe = job.recipe
    if champion:
        inputs["champion"] = folder / "model"
        data = json.loads(recipe.model_dump_json())
        known = {
            "name": "az", "version": "1", "uri": str(folder / "model"), "digest": "0" * 64,
            "artifacts": {"scores": str(champion)},
        }  # fmt: skip
        recipe = Recipe.model_validate(data | {"retrain": {"champion": known}})
    return replace(job, recipe=recipe, inputs=inputs, side_files={"evaluate.questions": (questions,)})


def scores_of(job: Job) -> dict[str, Any]:
    return scored(job)[0]


def test_base_and_champion_are_not_loaded_and_score_the_same(
    first: Path, tmp_path: Path, loads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    known = scores_of(job_of(first, tmp_path / "known", first / "scores"))
    loaded = list(loads)
    anew = scores_of(job_of(first, tmp_path / "anew", first / "nowhere"))

    assert loaded == ["adapted"]
    assert known == anew
    assert known["candidates"]["champion"]["generations"]
    assert "nowhere: no finished scores there" in caplog.text


def test_only_what_is_new_is_measured(
    first: Path, tmp_path: Path, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from anadil.evaluate import models

    texts: dict[str, int] = {}
    score = bits_per_byte.score

    def counted(model: Any, pairs: Any, **more: Any) -> Any:
        texts[more["name"]] = texts.get(more["name"], 0) + len(pairs)
        return score(model, pairs, **more)

    folder = shutil.copytree(first, tmp_path / "inputs")
    heldout = [document(text, f"h{i}") for i, text in enumerate(TEXTS[:5])]
    write_documents(folder / "corpus", "heldout", heldout)
    monkeypatch.setattr(models, "score", counted)
    known = scores_of(job_of(folder, tmp_path / "known", folder / "scores"))
    assert texts["base"] == texts["champion"] == 1
    assert texts["base, answers"] == 2, "both choices of an item made of the new document"
    anew = scores_of(job_of(folder, tmp_path / "anew", folder / "nowhere"))

    assert loads[:3] == ["base", "adapted", "champion"]
    for name, entry in anew["candidates"].items():
        assert known["candidates"][name]["nats"] == pytest.approx(entry["nats"], rel=1e-6)
    # The next week finds all of this one.
    assert {len(each.texts) for each in read_measurements(tmp_path / "known")} == {
        len(each.texts) for each in read_measurements(tmp_path / "anew")
    }


@pytest.mark.parametrize("changed", [{"context": 32}, {"stride": 16}])
def test_what_was_measured_otherwise_is_measured_again(
    first: Path, tmp_path: Path, loads: list[str], changed: dict[str, int]
) -> None:
    scores_of(job_of(first, tmp_path / "out", first / "scores", **changed))

    assert loads == ["base", "adapted", "champion"]


@pytest.mark.parametrize("key", ["torch", "transformers", "device", "dtype", "model"])
def test_another_version_or_machine_takes_nothing(
    first: Path, tmp_path: Path, loads: list[str], key: str
) -> None:
    scores = shutil.copytree(first / "scores", tmp_path / "scores")
    tables = json.loads((scores / FILE).read_text(encoding="utf-8"))
    for table in tables:
        table["of"][key] += ".1"
    (scores / FILE).write_text(json.dumps(tables), encoding="utf-8")
    artifact.seal(scores, kind="scores", origin={})

    scores_of(job_of(first, tmp_path / "out", scores))

    assert loads == ["base", "adapted", "champion"]


def test_a_model_of_unknown_files_is_not_kept(first: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(first, tmp_path / "inputs")
    (folder / "model/manifest.json").unlink()

    job = job_of(folder, tmp_path / "out")
    scored(job)

    assert len(read_measurements(job.out)) == 1


def test_scores_whose_bytes_changed_are_said_and_not_used(
    first: Path, tmp_path: Path, loads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    scores = shutil.copytree(first / "scores", tmp_path / "scores")
    text = (scores / FILE).read_text(encoding="utf-8")
    (scores / FILE).write_text(text.replace("1", "2"), encoding="utf-8")

    scores_of(job_of(first, tmp_path / "out", scores))

    assert loads == ["base", "adapted", "champion"]
    assert "its models are measured again" in caplog.text


def test_a_damaged_file_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('[{"of": ', encoding="utf-8")

    with pytest.raises(IntegrityError, match=r"measurements\.json: damaged .*; restore the artifact"):
        read_measurements(tmp_path)
    assert read_measurements(tmp_path / "earlier version") == []


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


def test_votes_join_scores_without_measuring_again(first: Path, tmp_path: Path, loads: list[str]) -> None:
    earlier, judged = str(first / "scores"), tmp_path / "judge"
    between = ["--between", "adapted", "base"]
    assert main(["judge", "page", earlier, *between, "--out", str(judged), "--mode", "sampled"]) == 0
    key = read_key(judged / "key.json", "key.json")
    saved = {
        "list": key.list,
        "judge": "Aynur",
        "votes": [{"id": each.id, "vote": "left"} for each in key.pairs],
    }
    (judged / "saved.json").write_text(json.dumps(saved), encoding="utf-8")
    votes = str(judged / "votes.json")
    key_file, saved_file = (str(judged / name) for name in ("key.json", "saved.json"))
    assert main(["judge", "votes", saved_file, "--key", key_file, "--out", votes]) == 0

    job = job_of(first, tmp_path / "out")
    scores = scores_of(replace(job, side_files=job.side_files | {"evaluate.votes": (votes,)}))

    assert loads == []
    assert scores["candidates"]["adapted"]["preference"]["base"]["votes"] == len(key.pairs)
    check = next(each for each in scores["gate"]["checks"] if each["name"] == "adapted.preference")
    assert (check["limit"], check["enforced"], check["num"]) == (0.5, False, len(key.pairs))
