import struct
from pathlib import Path

import pytest

from anadil.core.errors import DataError, PreflightError
from anadil.text import fasttext_model
from anadil.text.fasttext_model import QualityModel
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, rows, samples, stats, write_jsonl
from tests.kit.texts import AZERBAIJANI, TURKISH

pytest.importorskip("fasttext", reason="pip install fasttext-predict")

GOOD, POOR = "__label__hq", "__label__cc"
MAGIC, VERSION = 793712314, 12


def fasttext_file(path: Path, good_words: str, poor_words: str) -> Path:
    """A classifier in fastText's format: each word has a vector of its own label.

    Source of the layout: fastText 0.9.2, fasttext.cc, `FastText::saveModel`, and args.cc, dictionary.cc, densematrix.cc.
    """
    words = ["</s>", *good_words.split(), *poor_words.split()]
    num_good = len(good_words.split())
    args = struct.pack("<12i", 2, 5, 1, 1, 5, 1, 3, 3, 0, 0, 0, 100) + struct.pack("<d", 0.0001)
    head = struct.pack("<3i2q", len(words) + 2, len(words), 2, 100, -1)
    entries = b"".join(
        name.encode() + b"\0" + struct.pack("<qb", 2, kind)
        for name, kind in [*((word, 0) for word in words), (GOOD, 1), (POOR, 1)]
    )
    vectors = [(0, 0), *((40, 0) if number < num_good else (0, 40) for number in range(len(words) - 1))]
    matrices = [vectors, [(1, 0), (0, 1)]]
    tables = b"".join(
        b"\0" + struct.pack("<2q", len(each), 2) + b"".join(struct.pack("<2f", *row) for row in each)
        for each in matrices
    )
    path.write_bytes(struct.pack("<2i", MAGIC, VERSION) + args + head + entries + tables)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    fasttext_model.load_fasttext.cache_clear()
    return fasttext_file(tmp_path / "quality.bin", "bir", "külək")


def test_the_score_is_the_probability_of_the_label(model: Path) -> None:
    quality = QualityModel(str(model), GOOD)

    assert quality.score("və\nbu bir") > 0.99
    assert quality.score("bu külək") < 0.01
    assert QualityModel(str(model), POOR).score("bu külək") > 0.99
    assert quality.score("") == pytest.approx(0.5, abs=1e-4)


def test_documents_with_a_low_score_are_dropped_and_counted(tmp_path: Path, model: Path) -> None:
    own = [f"{text} Bu {word} sözdür." for text, word in zip(texts(3), ("bir", "bir", "külək"), strict=True)]
    raw = write_jsonl(tmp_path / "a.jsonl", [*own, TURKISH])

    corpus = clean(tmp_path / "1", raw, quality_model=str(model))
    watched = clean(tmp_path / "2", raw, quality_model=str(model), modes={"quality": "report"})

    assert stats(watched)["rules"]["quality"]["mode"] == "report"
    (sample,) = samples(corpus, "quality")
    assert sample["value"] < 0.5 == sample["limit"]
    assert {row["reason"] for row in rows(corpus)} == {None, "quality", "language"}
    assert stats(watched)["kept"] == 3


def test_without_a_model_no_document_has_a_score(tmp_path: Path) -> None:
    corpus = clean(tmp_path, write_jsonl(tmp_path / "a.jsonl", [AZERBAIJANI, *texts(3)]))

    assert {row["quality"] for row in rows(corpus)} == {None}


def test_a_label_that_the_model_does_not_know_is_refused(tmp_path: Path, model: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", texts(3))

    with pytest.raises(PreflightError, match=r"set clean.quality_label to one of __label__cc, __label__hq"):
        clean(tmp_path, raw, quality_model=str(model), quality_label="__label__good")


def test_a_file_that_is_no_model_and_several_models_are_refused(tmp_path: Path, model: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", texts(3))

    with pytest.raises(PreflightError, match=f"{raw} is no fastText model"):
        clean(tmp_path, raw, quality_model=str(raw))
    with pytest.raises(DataError, match=r"clean.quality_model: names 2 files"):
        clean(tmp_path, raw, quality_model=str(tmp_path / "*.*"))
