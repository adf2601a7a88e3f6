"""Bits per byte while training: evaluate's number, every byte once, the same for any number of processes."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from anadil.core.errors import RecipeError
from anadil.evaluate.bits_per_byte import score
from anadil.model.load import encode_text, load_tokenizer
from anadil.model.loss import IGNORED, summed_loss
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.validation import Validation, validation_of
from anadil.recipe.pretrain import Pretrain
from anadil.text.metrics import bits_per_byte
from tests.kit.llama import small_llama
from tests.kit.pretraining import make_corpus, make_tokenizer_artifact, set_bos
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.tokens import tokens_of_corpus

HELDOUT = (*PRETRAINING_TEXTS[:4], "Şəki xanları İpək Yolu üzərində karvansaralar tikdirmişdilər. " * 3)


def settings(length: int = 256, **more: object) -> Pretrain:
    return Pretrain.model_validate({"sequence_length": length, **more})


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return small_llama(vocab_size=300, initializer_range=0.1, use_cache=False)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return make_tokenizer_artifact(tmp_path / "tokenizer")


def made(corpus: Path, tokenizer: Path, length: int = 256, **more: object) -> Validation:
    tokens = tokens_of_corpus(corpus, tokenizer, corpus.parent / "work", length=length)
    validation = validation_of(tokens, settings(length, **more), rows=2)
    assert validation is not None
    return validation


def scored(validation: Validation, summed_loss: Callable[[Batch], torch.Tensor], **more: Any) -> float | None:
    total = validation.nats(summed_loss, **more)
    return None if total is None else bits_per_byte(total, validation.num_bytes)


class Scorer:
    """The model's summed loss of a batch, as the trainer has it; counts what it is asked."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model
        self.batches: list[Batch] = []

    def __call__(self, batch: Batch) -> torch.Tensor:
        self.batches.append(batch)
        # transformers' own way: positions that begin again keep documents apart.
        hidden = self.model.model(
            input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False
        ).last_hidden_state
        assert not hidden.requires_grad
        return summed_loss(hidden, self.model.lm_head.weight, batch.labels)


def test_documents_that_fit_into_a_sequence_get_the_number_of_evaluate(
    tmp_path: Path, tokenizer: Path, model: LlamaForCausalLM
) -> None:
    validation = made(make_corpus(tmp_path / "corpus", heldout=HELDOUT), tokenizer)
    loaded = load_tokenizer(tokenizer)
    ids = [np.array(encode_text(loaded, text), dtype=np.int32) for text in HELDOUT]
    assert max(map(len, ids)) <= 256
    bos = int(str(loaded.bos_token_id))
    nats = score(model, [([bos], own) for own in ids], context=256, stride=256, batch_tokens=512, name="base")
    num_bytes = sum(len(text.encode()) for text in HELDOUT)

    found = scored(validation, Scorer(model))

    assert found == pytest.approx(bits_per_byte(float(nats.sum()), num_bytes), rel=1e-6)


def test_without_a_bos_the_end_token_stands_before_a_document_as_in_evaluate(
    tmp_path: Path, tokenizer: Path, model: LlamaForCausalLM
) -> None:
    path = tokenizer / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"bos_token": "<|begin_of_text|>", ', ""))
    loaded = load_tokenizer(tokenizer)
    assert loaded.bos_token_id is None
    ids = [np.array(encode_text(loaded, text), dtype=np.int32) for text in HELDOUT]
    eos = int(str(loaded.eos_token_id))
    nats = score(model, [([eos], own) for own in ids], context=256, stride=256, batch_tokens=512, name="base")

    validation = made(make_corpus(tmp_path / "corpus", heldout=HELDOUT), tokenizer)

    expected = bits_per_byte(float(nats.sum()), validation.num_bytes)
    assert scored(validation, Scorer(model)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("with_bos", [False, True])
@pytest.mark.parametrize("length", [8, 13, 32])
def test_every_token_of_a_long_document_is_scored_exactly_once(
    tmp_path: Path, tokenizer: Path, model: LlamaForCausalLM, length: int, with_bos: bool
) -> None:
    if with_bos:
        set_bos(tokenizer)
    validation = made(make_corpus(tmp_path / "corpus", heldout=HELDOUT), tokenizer, length)
    loaded = load_tokenizer(tokenizer)
    expected = sorted(token for text in HELDOUT for token in encode_text(loaded, text))
    scorer = Scorer(model)

    scored(validation, scorer)

    labels = torch.cat([batch.labels.flatten() for batch in scorer.batches])
    assert sorted(labels[labels != IGNORED].tolist()) == expected
    assert validation.num_bytes == sum(len(text.encode()) for text in HELDOUT)
    stream, pieces = validation.packed.stream, validation.packed.pieces[:].tolist()
    leads = [lead for _, _, lead in pieces]
    assert leads.count(1) == (len(leads) - len(HELDOUT) if with_bos else 0)
    if with_bos:
        first = [int(stream.ids[start : start + 1][0]) for start, _, lead in pieces if not lead]
        assert {stream.bos, *first} == {loaded.bos_token_id}


@pytest.mark.parametrize("data", [2, 3, 5, 64])
def test_the_number_does_not_depend_on_how_many_processes_share_the_work(
    tmp_path: Path, tokenizer: Path, model: LlamaForCausalLM, data: int
) -> None:
    validation = made(make_corpus(tmp_path / "corpus", heldout=HELDOUT), tokenizer, 32)
    alone = scored(validation, Scorer(model))
    parts: list[torch.Tensor] = []
    scorers = [Scorer(model) for _ in range(data)]

    def keep(nats: torch.Tensor) -> torch.Tensor:
        parts.append(nats)
        return nats

    for rank, scorer in enumerate(scorers):
        scored(validation, scorer, data=data, data_rank=rank, add_up=keep)
    together = bits_per_byte(float(torch.stack(parts).sum()), validation.num_bytes)

    assert together == pytest.approx(alone, rel=1e-6)
    assert len({len(scorer.batches) for scorer in scorers}) == 1


def test_only_the_first_documents_with_text_count(tmp_path: Path, tokenizer: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", heldout=("", *HELDOUT))

    validation = made(corpus, tokenizer, validate_documents=2)

    assert validation.num_bytes == sum(len(text.encode()) for text in HELDOUT[:2])
    assert validation.packed.stream.num_documents == 2


def test_an_empty_held_out_part_is_said_once_and_not_validated(
    tmp_path: Path, tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = make_corpus(tmp_path / "corpus")

    tokens = tokens_of_corpus(corpus, tokenizer, tmp_path / "work")
    with caplog.at_level(logging.INFO):
        found = validation_of(tokens, settings(), rows=2)

    assert found is None
    assert len(caplog.records) == 1
    assert "the corpus holds nothing out" in caplog.text


def test_a_run_that_never_validates_reads_nothing(tmp_path: Path, tokenizer: Path) -> None:
    tokens = tokens_of_corpus(make_corpus(tmp_path / "corpus", heldout=HELDOUT), tokenizer, tmp_path / "work")
    for file in Path(tokens.uri).rglob("heldout/*"):
        file.unlink()

    assert validation_of(tokens, settings(validate_every=0), rows=2) is None


def test_a_loss_that_is_no_number_is_said(tmp_path: Path, tokenizer: Path) -> None:
    validation = made(make_corpus(tmp_path / "corpus", heldout=HELDOUT), tokenizer)

    with pytest.raises(RecipeError, match="held-out loss is nan; lower the learning rate"):
        scored(validation, lambda _batch: torch.tensor(math.nan))
