import json
import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from anadil.core.errors import DataError
from anadil.model.load import load_model
from anadil.model.loss import IGNORED
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.embedding_init import (
    BaseTable,
    Init,
    fit_vocabulary,
    new_rows,
    vocabulary_rows,
    whole_table,
)
from anadil.pretrain.validation import LEANS_FROM, FirstPosition, probe_first_position, tell_first_position
from anadil.tokens.packing import Packed, TokenStream, pack
from tests.kit.pretraining import make_model, make_tokenizer, make_tokenizer_artifact


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_are_means_of_base_rows_in_every_table(tmp_path: Path, tied: bool) -> None:
    model = load_model(make_model(tmp_path / "model", tied=tied))
    before = [model.get_input_embeddings().weight.clone(), model.get_output_embeddings().weight.clone()]
    rows = [[299 - token] for token in range(300)] + [[0, 1, 2]] * 10 + [[] for _ in range(10)]
    make_tokenizer_artifact(tmp_path / "tokenizer", rows, vocab_size=310)

    fit_vocabulary(model, tmp_path / "tokenizer")

    after = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    assert (after[0] is after[1]) == tied
    assert model.config.vocab_size == 320
    for old, new in zip(before, after, strict=True):
        assert torch.equal(new[:300], old.flip(0))
        assert torch.allclose(new[305], old[:3].mean(0), atol=1e-7)
        assert torch.allclose(new[310:], old.mean(0).expand(10, -1), atol=1e-6)  # rows of no token


@pytest.mark.parametrize(
    ("rows", "vocab_size", "text"),
    [
        (None, 320, "320 tokens, but the base model has 300 embedding rows"),
        ([[0]] * 299, 300, r"299 rows for 300 tokens; run the tokenizer stage again"),
        ([[0]] * 299 + [[300]], 300, r"token 299 is made of base ids \[300\].*300 embedding rows; make"),
        (
            [[0]] * 299 + [[]],
            300,
            r"no row for '<\|eot_id\|>', which transformers reads as token 299; .* run",
        ),
        ([[0]] * 298 + [[0], [0, -1]], 300, r"token 299 is made of base ids \[0, -1\]"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(
    tmp_path: Path, rows: list[list[int]] | None, vocab_size: int, text: str
) -> None:
    model = load_model(make_model(tmp_path / "model"))
    make_tokenizer_artifact(tmp_path / "tokenizer", rows, vocab_size)

    with pytest.raises(DataError, match=text):
        fit_vocabulary(model, tmp_path / "tokenizer")


@pytest.mark.parametrize(
    ("rows", "role"),
    [(None, "pad_token"), ([*([row] for row in range(301))], "pad_token"), (None, "image_token")],
)
def test_a_special_token_that_the_base_has_no_row_for_gets_the_mean_of_its_rows(
    tmp_path: Path, rows: list[list[int]] | None, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(make_model(tmp_path / "model"))
    before = model.get_input_embeddings().weight.clone()
    place = make_tokenizer_artifact(tmp_path / "tokenizer", rows)
    content = json.loads((place / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][-1], "id": 300, "content": "[PAD]"})
    (place / "tokenizer.json").write_text(json.dumps(content))
    settings = json.loads((place / "tokenizer_config.json").read_text())
    (place / "tokenizer_config.json").write_text(json.dumps({**settings, role: "[PAD]"}))

    fit_vocabulary(model, place)

    new = model.get_input_embeddings().weight
    assert torch.equal(new[:300], before)
    assert torch.allclose(new[300:], before.mean(0), atol=1e-6)
    assert "no embedding row for its special token [PAD]" in caplog.text


def test_a_missing_map_names_the_remedy(tmp_path: Path) -> None:
    model = load_model(make_model(tmp_path / "model"))
    make_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer/manifest.json").write_text(json.dumps({}))

    with pytest.raises(DataError, match=r"embedding_map.json: no such file; run the tokenizer stage again"):
        fit_vocabulary(model, tmp_path / "tokenizer")


INITS: tuple[Init, ...] = ("mean", "random")


def mapped(folder: Path) -> Path:
    """A tokenizer of 310 tokens, the last ten of them new, in 320 rows."""
    rows = [[token] for token in range(300)] + [[0, 1, 2]] * 10 + [[] for _ in range(10)]
    return make_tokenizer_artifact(folder, rows, vocab_size=310)


def block(table: torch.Tensor, first: int, count: int) -> torch.Tensor:
    return table[first : first + count]


def base_table() -> torch.Tensor:
    return torch.randn(300, 16, generator=torch.Generator().manual_seed(5))


def test_each_initialisation_leaves_known_tokens_and_says_where_new_ones_come_from(tmp_path: Path) -> None:
    tokenizer, base = mapped(tmp_path / "tokenizer"), base_table()

    rows = {init: vocabulary_rows(tokenizer, 300, init, seed=3) for init in INITS}
    made = {init: whole_table(each, base) for init, each in rows.items() if each is not None}

    mean = base[:3].mean(0)
    assert all(torch.equal(table[:300], base) for table in made.values())
    assert torch.allclose(made["mean"][300:310], mean.expand(10, -1), atol=1e-6)
    assert abs(made["random"][300:310].std() / base.std() - 1) < 0.2
    assert not torch.equal(made["random"][300], made["random"][301])


@pytest.mark.parametrize("init", INITS)
def test_rows_are_the_same_however_they_are_shared_out(tmp_path: Path, init: Init) -> None:
    rows = vocabulary_rows(mapped(tmp_path / "tokenizer"), 300, init, seed=3)
    assert rows is not None
    base = base_table()
    whole = whole_table(rows, base)

    for first, count, columns in ((0, 160, slice(0, 8)), (160, 160, slice(8, 16)), (305, 3, slice(0, 16))):
        part = BaseTable(partial(block, base[:, columns]), (300, 16), columns)
        for start, made in new_rows(rows, part, first, count):
            assert torch.equal(made, whole[first + start : first + start + len(made), columns])


def test_another_seed_or_table_draws_other_rows(tmp_path: Path) -> None:
    tokenizer, base = mapped(tmp_path / "tokenizer"), base_table()

    def drawn(seed: int, number: int) -> torch.Tensor:
        rows = vocabulary_rows(tokenizer, 300, "random", seed=seed)
        assert rows is not None
        return whole_table(rows, base, number)[300]

    assert torch.equal(drawn(3, 0), drawn(3, 0))
    assert not torch.equal(drawn(3, 0), drawn(4, 0))
    assert not torch.equal(drawn(3, 0), drawn(3, 1))


def test_surgery_keeps_rows_of_a_base_with_more_rows_than_tokens(tmp_path: Path) -> None:
    tokenizer = make_tokenizer_artifact(tmp_path / "tokenizer", [[0]] * 300)
    file = tokenizer / "embedding_map.json"
    file.write_text(json.dumps({"strategy": "surgery", "rows": [[token] for token in range(300)]}))

    rows = vocabulary_rows(tokenizer, 320)

    assert rows is not None
    assert list(rows.sources) == [[token] for token in range(320)]


BOS = 297


@dataclass
class Model:
    """Gives each target one nat behind BOS at position 0, and more without; as many groups score as there are."""

    without: float
    groups: int = 1

    @property
    def mesh(self) -> SimpleNamespace:
        return SimpleNamespace(data=self.groups)

    def nats(self, batch: Batch) -> torch.Tensor:
        begins = batch.borders[:-1].tolist()
        ends = batch.borders[1:].tolist()
        ids, labels = batch.input_ids.flatten(), batch.labels.flatten()
        total = 0.0
        for begin, end in zip(begins, ends, strict=True):
            each = 1.0 if ids[begin] == BOS else self.without
            total += each * int((labels[begin:end] != IGNORED).sum())
        return torch.tensor(total)

    def add_up(self, nats: torch.Tensor) -> torch.Tensor:
        return nats * self.groups


def packed(*sizes: int, length: int = 64) -> Packed:
    documents = [[BOS, *range(size), 298] for size in sizes]
    starts = np.cumsum([0, *map(len, documents)])
    return pack(
        TokenStream(ids=np.concatenate(documents).astype(np.int32), starts=starts, digest="d"), length
    )


probe: Any = probe_first_position


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("length", [8, 64, 200])
def test_the_same_targets_are_scored_behind_bos_and_without(length: int, groups: int) -> None:
    found = probe(Model(without=3.5, groups=groups), packed(90, 20, 250, 81, length=length))

    assert found is not None
    assert (found.with_bos, found.without) == pytest.approx((1.0, 3.5))
    assert found.without - found.with_bos > LEANS_FROM
    assert 0 < found.targets <= length


def test_a_base_that_does_not_mind_does_not_lean() -> None:
    found = probe(Model(without=0.99), packed(90, 20))

    assert found is not None
    assert found.without - found.with_bos <= LEANS_FROM


def test_short_documents_are_no_answer() -> None:
    assert probe(Model(without=3.5), packed(5, 20, 60)) is None


@pytest.mark.parametrize(("bos", "warned"), [(BOS, False), (None, True)])
def test_a_base_that_leans_on_a_bos_that_is_not_set_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bos: int | None, warned: bool
) -> None:
    sequences = packed(90)
    stream = replace(sequences.stream, bos=bos)
    found = FirstPosition(with_bos=3.54, without=5.85, targets=640)

    with caplog.at_level(logging.INFO):
        tell_first_position(found, replace(sequences, stream=stream), make_tokenizer(tmp_path))

    assert "3.54 nats a token behind <|begin_of_text|> and 5.85 without it (640 targets)" in caplog.text
    assert any(record.levelno == logging.WARNING for record in caplog.records) == warned
