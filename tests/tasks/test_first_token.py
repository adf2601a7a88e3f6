"""What stands before the harness's texts: as in training, in what is cut too."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from anadil.model.load import load_model, load_tokenizer
from anadil.tasks.harness import Harnessed

LENGTH = 24


@pytest.fixture
def harnessed(models: Path) -> Any:
    def make(*, sets_bos: bool) -> Harnessed:
        tokenizer: Any = load_tokenizer(models / "model")
        bos = (tokenizer.bos_token, tokenizer.bos_token_id)
        end = (tokenizer.eos_token, tokenizer.eos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos[0]} $A {end[0]}" if sets_bos else "$A",
            special_tokens=[bos, end] if sets_bos else [],
        )
        return Harnessed(load_model(models / "model").eval(), tokenizer, LENGTH)

    return make


def asked(model: Any, context: str, answer: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of a row that the model reads to score an answer."""
    rows: list[list[int]] = []
    call = model._model_call

    def heard(ids: Any, **more: Any) -> Any:
        rows.extend(ids.tolist())
        return call(ids, **more)

    monkeypatch.setattr(model, "_model_call", heard)
    model._loglikelihood_tokens([((context, answer), *model._encode_pair(context, answer))])
    return rows[0]


def test_a_long_request_keeps_its_bos_and_has_no_other_token_of_the_tokenizers(
    harnessed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = harnessed(sets_bos=True)
    bos, eos = model.tokenizer.bos_token_id, model.tokenizer.eos_token_id

    for context in ("Qatar", "Qatar hara getdi? " * 12):
        row = asked(model, context, " stansiyaya", monkeypatch)

        assert row[0] == bos
        assert row.count(bos) == 1
        assert eos not in row
    assert len(row) == LENGTH


def test_texts_to_go_on_with_keep_it_too_where_they_are_cut(harnessed: Any) -> None:
    model = harnessed(sets_bos=True)

    ids, mask = model.tok_batch_encode(["Bir", "Qatar hara getdi? " * 12], left_truncate_len=LENGTH)

    bos = model.tokenizer.bos_token_id
    assert ids.shape[1] == LENGTH
    for row, seen in zip(ids.tolist(), mask.tolist(), strict=True):
        assert row[seen.index(1)] == bos
        assert [token for token, each in zip(row, seen, strict=True) if each].count(bos) == 1


def test_where_windows_have_none_only_whole_texts_begin_with_it(
    harnessed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = harnessed(sets_bos=False)
    bos = model.tokenizer.bos_token_id

    assert asked(model, "Qatar", " stansiyaya", monkeypatch)[0] == bos
    assert bos not in asked(model, "Qatar hara getdi? " * 12, " stansiyaya", monkeypatch)


def test_bos_stands_for_an_empty_question(harnessed: Any) -> None:
    model = harnessed(sets_bos=True)

    assert model.prefix_token_id == model.tokenizer.bos_token_id
    assert json.dumps(model.tok_encode("")) == json.dumps([model.tokenizer.bos_token_id])
