"""`anadil clean teach`: from labels to a classifier that `clean` reads."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anadil.cli import main
from anadil.core.errors import DataError
from anadil.language.classifier import learn, shares_of_rows
from anadil.language.fasttext_file import BUCKETS, write_model
from anadil.language.labels import LabelledText, files_of, read_labels
from anadil.text.fasttext_model import QualityModel
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, documents, stats
from tests.kit.rows import write_rows


def shuffled(text: str, seed: int) -> str:
    """The text with the letters of its words in another order, as a bad scan has them."""
    rng = random.Random(seed)
    return " ".join("".join(rng.sample(word, len(word))) for word in text.split())


def rows_of(good: Sequence[str], source: str = "a.jsonl:1") -> list[dict[str, Any]]:
    bad = [shuffled(text, place) for place, text in enumerate(good)]
    return [
        {"text": text, "label": label, "source": source}
        for label, part in (("good", good), ("bad", bad))
        for text in part
    ]


def labelled(rows: Sequence[dict[str, Any]]) -> list[LabelledText]:
    return [
        LabelledText(text=row["text"], is_good=row["label"] == "good", source=row["source"]) for row in rows
    ]


def test_the_file_scores_as_the_weights_say_in_any_script(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(0, 30, BUCKETS + 1).astype(np.float32)
    write_model(weights, tmp_path / "model.bin")
    model = QualityModel(str(tmp_path / "model.bin"), "__label__hq")
    said = ["Nənəm çörək bişirir.", "東京は日本の首都である", "שלום עולם", "👩‍👩‍👧 ok", "a", "Bakı \u00a0 b"]
    said += ["salam </s> dünya", "salam\0dünya", "salam __label__hq dünya", "x</s>y __label__"]

    expected = 1 / (1 + np.exp(-(shares_of_rows(said) @ weights.astype(float))))

    # fastText adds 1e-5 to each probability.
    assert [model.score(text) for text in said] == pytest.approx(expected, abs=2e-5)


def test_labels_of_one_source_teach_more_than_the_source(tmp_path: Path) -> None:
    fit = learn(labelled(rows_of(texts(60)) + rows_of(texts(120)[60:], "b.jsonl:2")))

    assert fit.source_auc is not None
    assert fit.source_auc < 0.6
    assert fit.auc_interval[0] > 0.9
    assert min(fit.precision, fit.recall) > 0.8


def test_the_command_writes_a_model_that_clean_uses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = texts(100)
    labels = write_rows(tmp_path / "labels.jsonl", rows_of(own[:60]))
    out = tmp_path / "quality.bin"

    assert main.main(["clean", "teach", str(labels), "--out", str(out)]) == 0

    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[-3:]] == ["precision", "recall", "AUC"]
    figures = json.loads(Path(f"{out}.json").read_text())
    assert (figures["good"], figures["bad"], figures["auc_of_source_alone"]) == (60, 60, None)
    assert list(figures["labels"]) == [str(labels)]
    unseen = own[60:]
    raw = write_rows(tmp_path / "raw.jsonl", rows_of(unseen))
    made = clean(tmp_path, raw, quality_model=str(out), rules={"min_quality": 0.5})
    kept = [document.text for document in documents(made)]
    assert len(set(kept) & set(unseen)) > 0.8 * len(unseen)
    assert stats(made)["dropped"]["quality"] > 0.8 * len(unseen) - sum(
        count for name, count in stats(made)["dropped"].items() if name != "quality"
    )


def test_labels_that_the_source_explains_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(texts(40))
    for row in rows:
        row["url"] = f"https://{row['label']}.example/1"
    labels = write_rows(tmp_path / "labels.jsonl", rows)

    assert main.main(["clean", "teach", str(labels), "--out", str(tmp_path / "q.bin")]) == 0

    assert "not surely better than the source of a text alone" in capsys.readouterr().err


def test_a_folder_of_the_page_is_read_and_what_is_skipped_is_counted(tmp_path: Path) -> None:
    own = texts(40)
    write_rows(
        tmp_path / "good.jsonl", [{"id": str(n), "text": text} for n, text in enumerate([*own[:20], own[0]])]
    )
    write_rows(tmp_path / "bad.jsonl", [{"text": text} for text in own[20:]] + [{"id": "x"}])

    labels = read_labels(files_of(tmp_path))

    assert (labels.num_good, len(labels.texts), labels.skipped) == (
        20,
        40,
        {"repeated": 1, "without_text": 1},
    )
    assert [path.name for path in files_of(tmp_path)] == ["good.jsonl", "bad.jsonl"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[:20], r"0 bad texts are too few.*label 20 of each"),
        (lambda rows: rows[:20] + rows[20:25], "5 bad texts are too few"),
        (lambda rows: [*rows, {**rows[0], "label": "bad"}], r":41: is bad, and the same text in .*:1 is not"),
        (lambda rows: [*rows, {"text": "x", "label": "fine"}], r":41: label 'fine' is neither good nor bad"),
        (lambda rows: [*rows, {"text": "x"}], r"label 'labels' is neither good nor bad.*good.jsonl or bad.jsonl"),
        (lambda rows: [*rows, ["x"]], r":41: not an object"),
        (lambda rows: rows[1:] + rows[1:2] + [{"label": "good"}], "19 good texts .* beside 1 repeated and 1 without text"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_learnt_from_are_refused(tmp_path: Path, change: Any, words: str) -> None:
    labels = write_rows(tmp_path / "labels.jsonl", change(rows_of(texts(20))))

    with pytest.raises(DataError, match=words):
        read_labels([labels])


@pytest.mark.parametrize("out", ["labels.jsonl", "labels"])
def test_a_place_that_would_lose_the_labels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [write_rows(tmp_path / name, rows_of(texts(20))).name for name in ("labels.jsonl", "labels.json")]

    assert main.main(["clean", "teach", *names, "--out", out]) == 2

    assert "would write over the labels in" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_classifier_that_learnt_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # No text shares an n-gram with another.
    rows = [
        {"text": chr(first + place) * 2, "label": label}
        for label, first in (("good", 0x61), ("bad", 0x430))
        for place in range(20)
    ]
    labels = write_rows(tmp_path / "labels.jsonl", rows)

    assert main.main(["clean", "teach", str(labels), "--out", str(tmp_path / "q.bin")]) == 0

    assert "not surely better than chance" in capsys.readouterr().err


def test_an_address_that_is_none_names_no_source(tmp_path: Path) -> None:
    rows = [{**row, "url": "http://[page", "source": "a.jsonl:1"} for row in rows_of(texts(20))]

    labels = read_labels([write_rows(tmp_path / "labels.jsonl", rows)])

    assert {each.source for each in labels.texts} == {"a.jsonl"}


def test_a_folder_without_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds neither good\.jsonl nor bad\.jsonl"):
        files_of(tmp_path)
