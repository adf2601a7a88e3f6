"""Measuring of points on real models, and the text that it is done on."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anadil.artifacts.scored_text import tuning_part
from anadil.core.errors import DataError
from anadil.evaluate.models import open_candidate, open_model
from anadil.merge import auto as measure
from anadil.merge.auto import TARGET, choose_values, read_tuning_texts, score_of
from anadil.merge.check import inspect_tuning_text
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.text.corpus import write_documents
from anadil.text.metrics import bits_per_byte
from tests.evaluate.conftest import TEXTS, document, save_model

LONG = [f"{text} {number} {text * 60}" for number, text in enumerate(TEXTS)]
ENGLISH = [f"The library of the town has {number} rooms and a garden." for number in range(12)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("base", "model")):
        save_model(folder / name, 400, seed=seed)
    return folder


def job_on(folder: Path, models: Path, corpora: dict[str, Sequence[str]], **changes: Any) -> Job:
    """A job with the held-out texts of a corpus for each source; an empty name is that of none."""
    inputs = {"model": models / "model"}
    for name, texts in corpora.items():
        word = f"corpus.{name}" if name else "corpus"
        inputs[word] = folder / word
        write_documents(
            folder / word, "heldout", [document(text, f"{word} {at}") for at, text in enumerate(texts)]
        )
    recipe = Recipe.model_validate(
        {
            "base": {"model": str(models / "base")},
            "merge": {"base_share": "auto"},
            "pretrain": {"sequence_length": 64},
        }
        | changes
    )
    return Job(recipe=recipe, inputs=inputs, out=folder, work=folder, base_cache=folder)


def two_sources(english: Sequence[str], **of_english: Any) -> tuple[dict[str, Sequence[str]], dict[str, Any]]:
    sources = {"web": {"inputs": ["a"]}, "other": {"inputs": ["b"], "language": "ru"} | of_english}
    mix = {
        "phases": [{"trains": "all", "steps": 1, "lr": 1e-4, "mix": {"web": 0.5, "other": 0.5}}],
        "sequence_length": 64,
    }
    return {"web": LONG, "other": english}, {"sources": sources, "pretrain": mix}


def load_half(models: Path) -> Any:
    """Copy the mean by share of two models of one shape, in plain torch."""
    ends = [open_candidate(open_model(name, models / name), Recipe()).model for name in ("model", "base")]
    tables = [dict(each.named_parameters()) for each in ends]

    def load(model: Any, base_share: float, _: Sequence[float]) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_((1 - base_share) * tables[0][name] + base_share * tables[1][name])

    return load


def test_a_warning_names_texts_that_are_too_short_to_choose_by(
    tmp_path: Path, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read_tuning_texts(job_on(tmp_path, models, {"": LONG}))

    assert "hardly tell one merge from another: target 2; raise clean.heldout_fraction" in caplog.text


def test_only_the_part_for_tuning_is_read_and_its_beginnings(tmp_path: Path, models: Path) -> None:
    texts = read_tuning_texts(job_on(tmp_path, models, {"": LONG}))

    expected = {each.text[:2_000] for each in tuning_part(map(document, LONG))[0]}
    assert 0 < len(expected) < len(LONG)
    assert {each.text for each in texts.target} == expected
    assert {each.lang for each in texts.target} == {TARGET}
    assert texts.counts == {TARGET: len(expected), "en": 4}


def test_a_text_of_many_documents_is_sampled_by_digest(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "MAX_DOCUMENTS", 2)
    many = [f"{text} {number}" for number in range(8) for text in TEXTS]

    texts = [
        read_tuning_texts(job_on(tmp_path / str(at), models, {"": each})).target
        for at, each in enumerate((many, many[::-1]))
    ]

    assert len(texts[0]) == 2
    assert [each.text for each in texts[0]] == [each.text for each in texts[1]]


def test_a_corpus_without_a_part_for_tuning_is_a_data_error(tmp_path: Path, models: Path) -> None:
    with pytest.raises(DataError, match=r"no held-out document for tuning .* raise clean\.heldout_fraction"):
        read_tuning_texts(job_on(tmp_path, models, {"": LONG[:1]}))


def test_a_language_of_a_source_without_text_for_tuning_is_a_data_error(tmp_path: Path, models: Path) -> None:
    corpora, changes = two_sources(["Одна книга."])

    with pytest.raises(
        DataError, match="the retained text other has 1 document and none for tuning"
    ) as error:
        read_tuning_texts(job_on(tmp_path / "one", models, corpora, **changes))
    assert "raise clean.heldout_fraction of the source" in str(error.value)
    corpora, changes = two_sources([])
    with pytest.raises(DataError, match="the retained text other has 0 documents"):
        read_tuning_texts(job_on(tmp_path / "none", models, corpora, **changes))


def test_other_text_in_the_language_of_a_small_source_stands_for_it(
    tmp_path: Path, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpora, changes = two_sources(ENGLISH[:1], language="en")

    texts = read_tuning_texts(job_on(tmp_path, models, corpora, **changes))

    assert list(texts.counts) == [TARGET, "en"]
    assert "source text other has 1 document held out, and is not tuned by" in caplog.text


def test_a_point_has_the_figures_of_its_weights(tmp_path: Path, models: Path) -> None:
    job = job_on(tmp_path, models, {"": LONG})
    texts = read_tuning_texts(job)

    score = score_of(job.recipe, models / "base", models / "model", load_half(models), texts)
    ends = score(0.0, ()), score(1.0, ())

    # By hand: each model alone on the same documents.
    for figures, name in zip(ends, ("model", "base"), strict=True):
        loaded = open_candidate(open_model(name, models / name), job.recipe)
        ids = [
            np.array(loaded.candidate.tokenizer(each.text)["input_ids"], dtype=np.int32)
            for each in texts.target
        ]
        size = sum(len(each.text.encode()) for each in texts.target)
        assert figures.target == pytest.approx(bits_per_byte(float(loaded.nats(ids).sum()), size), rel=1e-6)
    assert ends[1].retained["en"].ratio == pytest.approx(1)
    assert ends[1].retained["en"].high == pytest.approx(1)
    assert ends[0].retained["en"].high > ends[0].retained["en"].ratio


def test_what_is_auto_is_chosen_and_said(
    tmp_path: Path, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_on(tmp_path, models, {"": LONG}, evaluate={"gate": {"max_retained_ratio": 2}})

    with caplog.at_level(logging.INFO):
        choice, entry = choose_values(job, models / "base", models / "model", load_half(models))

    assert entry["chosen"]["base_share"] == choice.base_share
    assert entry["limits"] == {"retained": 2, "target": 1.02}
    assert entry["texts"]["en"] == 4
    table = caplog.text.splitlines()
    assert any("base_share  target" in line and "within" in line for line in table)
    assert sum(f" * {choice.base_share:g} " in line for line in table) == 1
    assert any("rule of base_share: the fewest bits per byte" in line for line in table)
    assert f"chosen: base_share {choice.base_share:g}: " in caplog.text


def test_a_small_file_of_retained_text_is_refused_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "ru.txt"
    file.write_text("Одна книга.", encoding="utf-8")
    recipes = (
        Recipe.model_validate({"merge": {"base_share": "auto"}, "evaluate": {"retained": each}})
        for each in ([], [str(file)])
    )

    assert inspect_tuning_text(next(recipes)).detail == "4 documents for tuning"
    with pytest.raises(DataError, match="retained text ru has 1 document and none for tuning"):
        inspect_tuning_text(next(recipes))
