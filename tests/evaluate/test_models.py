import logging
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from tokenizers import normalizers

from anadil.artifacts import artifact
from anadil.core.errors import DataError
from anadil.evaluate.models import ScoredModel, encode_for_all, open_artifact, open_model
from anadil.model.load import document_ids, load_tokenizer
from tests.evaluate.conftest import TEXTS, document, save_model, train_tokenizer

NFD = unicodedata.normalize("NFD", "Çörək süfrədədir.")


def candidate(name: str, vocab_size: int, *, normalizes: bool = False) -> ScoredModel:
    tokenizer = train_tokenizer(vocab_size)
    if normalizes:
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    return ScoredModel(name=name, path=Path(name), tokenizer=tokenizer, prefix=0)


def test_each_candidate_encodes_the_same_documents() -> None:
    documents = [document(text) for text in TEXTS]

    encoded = encode_for_all([candidate("base", 300), candidate("adapted", 420)], documents)

    assert encoded.documents == tuple(documents)
    assert encoded.altered == ()
    assert [len(ids) for ids in encoded.ids.values()] == [len(TEXTS)] * 2
    assert sum(map(len, encoded.ids["adapted"])) < sum(map(len, encoded.ids["base"]))
    assert all(ids.dtype == np.int32 for ids in encoded.ids["base"])


def test_a_document_that_one_tokenizer_alters_is_left_out_for_all(caplog: pytest.LogCaptureFixture) -> None:
    documents = [*(document(f"{n}. {TEXTS[0]}", f"d{n}") for n in range(120)), document(NFD, "nfd")]

    with caplog.at_level(logging.WARNING):
        encoded = encode_for_all(
            [candidate("base", 300, normalizes=True), candidate("adapted", 420)], documents
        )

    assert encoded.altered == ("nfd",)
    assert len(encoded.documents) == len(encoded.ids["base"]) == len(encoded.ids["adapted"]) == 120
    assert "a tokenizer alters 1 documents, skipped: nfd" in caplog.text


def test_a_tokenizer_that_alters_many_documents_is_a_data_error() -> None:
    documents = [document(f"{n} {NFD}", f"d{n}") for n in range(5)]

    with pytest.raises(DataError, match=r"document d0: the tokenizer of base \(base\) does not give it back"):
        encode_for_all([candidate("base", 300, normalizes=True)], documents)


def test_documents_begin_as_they_do_in_training(tmp_path: Path) -> None:
    with_bos = open_model("base", save_model(tmp_path / "with"))
    tokenizer = train_tokenizer(400)
    tokenizer.bos_token = None
    tokenizer.save_pretrained(tmp_path / "without")
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "neither")

    without, neither = (open_model("base", tmp_path / name) for name in ("without", "neither"))

    assert (with_bos.prefix, without.prefix, neither.prefix) == (0, 1, 1)
    for model, name in ((with_bos, "with"), (without, "without"), (neither, "neither")):
        assert model.prefix == document_ids(load_tokenizer(tmp_path / name), name)[0]


@pytest.mark.parametrize(("kind", "figures", "answers"), [
    ("model", {}, False), ("merged", {"answers": 0}, False), ("merged", {"answers": 1}, True), ("adapter", {}, True),
])  # fmt: skip
def test_an_artifact_answers_if_it_learnt_to_or_was_merged_with_what_does(
    tmp_path: Path, kind: str, figures: dict[str, int], answers: bool
) -> None:
    save_model(tmp_path / "merged" if kind == "adapter" else tmp_path)
    artifact.seal(tmp_path, kind=kind, origin={}, figures={**figures})

    opened = open_artifact("champion", tmp_path)

    assert opened.answers is answers
    assert opened.path == (tmp_path / "merged" if kind == "adapter" else tmp_path)
