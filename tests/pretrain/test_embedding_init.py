import json
from pathlib import Path

import pytest
import torch

from anadil.core.errors import DataError
from anadil.model.load import load_model
from anadil.pretrain.embedding_init import fit_vocabulary
from tests.kit.pretraining import make_model, make_tokenizer, make_tokenizer_artifact


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_are_means_of_base_rows_in_every_table(tmp_path: Path, tied: bool) -> None:
    model = load_model(make_model(tmp_path / "model", tied=tied))
    before = [model.get_input_embeddings().weight.clone(), model.get_output_embeddings().weight.clone()]
    rows = [[299 - token] for token in range(300)] + [[0, 1, 2]] * 10
    make_tokenizer_artifact(tmp_path / "tokenizer", rows, vocab_size=310)

    fit_vocabulary(model, tmp_path / "tokenizer")

    after = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    assert (after[0] is after[1]) == tied
    assert model.config.vocab_size == 310
    for old, new in zip(before, after, strict=True):
        assert torch.equal(new[:300], old.flip(0))
        assert torch.allclose(new[305], old[:3].mean(0), atol=1e-7)


def test_a_map_of_null_leaves_the_rows_as_they_are(tmp_path: Path) -> None:
    model = load_model(make_model(tmp_path / "model"))
    before = model.get_input_embeddings().weight.clone()
    make_tokenizer_artifact(tmp_path / "tokenizer", None)

    fit_vocabulary(model, tmp_path / "tokenizer")

    assert torch.equal(model.get_input_embeddings().weight, before)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[0]] * 299, r"299 rows for 300 tokens; run the tokenizer stage again"),
        ([[0]] * 299 + [[300]], r"token 299 is made of base ids \[300\].*300 embedding rows; make"),
        ([[0]] * 299 + [[]], r"token 299 is made of base ids \[\]"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(tmp_path: Path, rows: list[list[int]], text: str) -> None:
    model = load_model(make_model(tmp_path / "model"))
    make_tokenizer_artifact(tmp_path / "tokenizer", rows)

    with pytest.raises(DataError, match=text):
        fit_vocabulary(model, tmp_path / "tokenizer")


def test_more_tokens_than_base_rows_need_a_map(tmp_path: Path) -> None:
    model = load_model(make_model(tmp_path / "model"))
    make_tokenizer_artifact(tmp_path / "tokenizer", None, vocab_size=320)

    with pytest.raises(DataError, match="320 tokens, but the base model has 300 embedding rows"):
        fit_vocabulary(model, tmp_path / "tokenizer")


def test_a_missing_map_names_the_remedy(tmp_path: Path) -> None:
    model = load_model(make_model(tmp_path / "model"))
    make_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer/manifest.json").write_text(json.dumps({}))

    with pytest.raises(DataError, match=r"embedding_map.json: no such file; run the tokenizer stage again"):
        fit_vocabulary(model, tmp_path / "tokenizer")
