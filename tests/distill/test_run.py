import errno
import hashlib
import json
import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anadil.artifacts import artifact
from anadil.core.errors import DataError, PreflightError
from anadil.distill import run as distill
from anadil.distill.teach import BaseTeacher, Vocabulary
from anadil.model.load import document_ids, encode_text, load_model, load_tokenizer
from anadil.recipe.pretrain import Distillation, probability_bytes
from anadil.recipe.sections import Recipe
from anadil.text.corpus import read_corpora
from anadil.tokens.packing import cut_pieces
from anadil.tokens.probabilities import StoredProbabilities, id_dtype, open_probabilities
from anadil.tokens.stored_tokens import StoredTokens, open_tokens
from tests.kit.pretraining import make_model
from tests.kit.sources import ENGLISH, make_source_corpora
from tests.kit.teaching import MADE, ROWS, make_teaching_tokenizer, probabilities, teaching_recipe

K = 4


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    make_source_corpora(tmp_path)
    make_teaching_tokenizer(tmp_path / "tokenizer")
    return teaching_recipe(make_model(tmp_path / "model"))


def stored(tmp_path: Path, recipe: Recipe) -> tuple[StoredProbabilities, StoredTokens]:
    made = probabilities(tmp_path, recipe)
    tokens = next((tmp_path / "root/tokens").iterdir())
    manifest = artifact.read_manifest(str(tokens))
    assert manifest is not None
    return open_probabilities(made.uri, made.manifest, {}), open_tokens(str(tokens), manifest)


@torch.no_grad()
def test_probabilities_are_those_of_the_base_on_each_piece_alone(tmp_path: Path, recipe: Recipe) -> None:
    opened, tokens = stored(tmp_path, recipe)
    model: Any = load_model(tmp_path / "model")

    ids, logs = opened.read(0, opened.facts.tokens)

    stream, num_known, num_targets = tokens.packed.stream, 0, 0
    for start, num, _ in cut_pieces(stream, 32).tolist():
        new_ids = stream.ids[start : start + num + 1].tolist()
        base_ids = [piece for token in new_ids for piece in ROWS[token]]
        chances = model(input_ids=torch.tensor([base_ids])).logits[0].double().softmax(-1)
        for place in range(num):
            num_targets += 1
            following = new_ids[place + 1]
            if following in MADE:
                assert (ids[start + place] == -1).all()
                assert logs[start + place, -1] == 0
                continue
            num_known += 1
            last = sum(len(ROWS[token]) for token in new_ids[: place + 1]) - 1
            best = chances[last].topk(K)
            expected = [(-1 if token in MADE else token) for token in best.indices.tolist()]
            values = [
                0.0 if token == -1 else value
                for token, value in zip(expected, best.values.tolist(), strict=True)
            ]
            assert ids[start + place].tolist() == expected
            assert np.exp(logs[start + place].astype(float)) == pytest.approx(
                [*values, 1 - sum(values)], rel=4e-3
            )
    assert opened.facts.positions == num_known
    assert opened.facts.left_out["the base has other tokens"] == num_targets - num_known > 0
    assert id_dtype(opened.facts.vocabulary) == "U16"
    assert ids.shape[1] == K
    file = next(Path(opened.uri).glob("part-*"))
    assert file.stat().st_size < 1024 + probability_bytes(K, 300) * opened.facts.tokens + 8


def nats_of(model: Any, tokenizer: Any, texts: Sequence[str]) -> float:
    """The base's loss on texts in its own tokens, in pieces of 33 that share one."""
    nats = 0.0
    before = document_ids(tokenizer, "")[0]
    for text in texts:
        ids = [before, *encode_text(tokenizer, text)]
        for piece in (ids[at : at + 33] for at in range(0, len(ids) - 1, 32)):
            logs = model(input_ids=torch.tensor([piece])).logits[0].double().log_softmax(-1)
            nats -= logs[torch.arange(len(piece) - 1), piece[1:]].sum().item()
    return nats


@torch.no_grad()
def test_the_base_s_loss_is_that_of_its_own_tokens_however_the_vocabulary_cuts(
    tmp_path: Path, recipe: Recipe, caplog: pytest.LogCaptureFixture
) -> None:
    documents = [each.text for each in read_corpora([tmp_path / "corpus.en"], "heldout")]
    model: Any = load_model(tmp_path / "model")
    tokenizer = load_tokenizer(tmp_path / "model")

    opened, _ = stored(tmp_path, recipe)

    score = opened.facts.scores["en"]
    assert score.nats == pytest.approx(nats_of(model, tokenizer, documents), rel=1e-5)
    assert (score.documents, score.bytes) == (2, sum(len(text.encode()) for text in documents))
    assert opened.facts.cut_otherwise == 2
    assert "tokens of the base as this vocabulary cuts it, and 156 as the base does. Prob" in caplog.text


@torch.no_grad()
def test_retained_texts_are_scored_where_they_decide_the_weight(tmp_path: Path, recipe: Recipe) -> None:
    file = tmp_path / "old.jsonl"
    file.write_text("".join(json.dumps({"content": text}) + "\n" for text in ENGLISH), encoding="utf-8")
    chosen = recipe.model_copy(
        update={
            "clean": recipe.clean.model_copy(update={"text_field": "content"}),
            "evaluate": recipe.evaluate.model_copy(update={"retained": (str(file),)}),
            "pretrain": recipe.pretrain.model_copy(update={"distillation": Distillation(top_k=K)}),
        }
    )

    opened, _ = stored(tmp_path, chosen)
    plain, _ = stored(tmp_path, recipe)

    texts = [text for text in ENGLISH if int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 4 == 0]
    nats = nats_of(load_model(tmp_path / "model"), load_tokenizer(tmp_path / "model"), texts)
    assert opened.facts.scores["retained.old"].nats == pytest.approx(nats, rel=1e-5)
    assert opened.facts.scores["retained.old"].documents == len(texts) > 1
    assert [*plain.facts.scores] == ["en"]


def test_a_killed_run_goes_on_behind_its_last_part_to_the_same_bytes(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distill, "PART_TOKENS", 800)
    whole, _ = stored(tmp_path, recipe)
    assert len(whole.facts.parts) > 3
    contents = [(Path(whole.uri) / part.file).read_bytes() for part in whole.facts.parts]
    shutil.rmtree(tmp_path / "root/probabilities")
    write, written = distill._write, []

    def third_fails(draft: Path, *others: Any) -> None:
        written.append(draft)
        if len(written) == 3:
            (draft / "part.safetensors").write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "no space left on device")
        write(draft, *others)

    monkeypatch.setattr(distill, "_write", third_fails)
    with pytest.raises(
        PreflightError, match=r"no space left for the probabilities of the base, .* finished parts are kept"
    ):
        probabilities(tmp_path, recipe)
    again, _ = stored(tmp_path, recipe)

    assert len(written) == len(whole.facts.parts) + 1
    assert again.facts == whole.facts
    assert [(Path(again.uri) / part.file).read_bytes() for part in again.facts.parts] == contents


def test_parts_are_read_as_one(tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = stored(tmp_path, recipe)
    ids, logs = one.read(0, one.facts.tokens)
    shutil.rmtree(tmp_path / "root/probabilities")
    shutil.rmtree(
        next((tmp_path / "root").glob("probabilities/*.work"), tmp_path / "none"), ignore_errors=True
    )
    monkeypatch.setattr(distill, "PART_TOKENS", 800)

    several, _ = stored(tmp_path, recipe)

    border = several.facts.parts[0].tokens
    for some in (slice(0, several.facts.tokens), slice(border - 3, border + 2)):
        found = several.read(some.start, some.stop)
        assert (found[0] == ids[some]).all()
        assert np.allclose(found[1], logs[some], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "place"), [(0, "held-out text of en"), (1, r"part-00000.safetensors, .*: document 1 \(from 0\)")]
)
def test_a_base_that_gives_nan_is_an_error_that_names_the_text(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, call: int, place: str
) -> None:
    hidden, calls = BaseTeacher._hidden, count()

    def broken(self: BaseTeacher, batch: Any) -> torch.Tensor:
        states = hidden(self, batch)
        if next(calls) != call:
            return states
        begin = sum(len(row.base_ids) for row in batch[:4]) if call else 0
        states[begin : begin + 5] = torch.nan
        return states

    monkeypatch.setattr(BaseTeacher, "_hidden", broken)

    with pytest.raises(DataError, match=f"{place}: the base gives NaN or Inf"):
        probabilities(tmp_path, recipe)


def test_a_vocabulary_without_a_map_is_the_base_s(tmp_path: Path) -> None:
    (tmp_path / "embedding_map.json").write_text('{"rows": null}')

    vocabulary = Vocabulary(tmp_path, 9, 7)

    assert vocabulary.is_known.all()
    assert vocabulary.expand(np.array([3, 1], dtype=np.int32)).tolist() == [3, 1]
    assert vocabulary.of_base.tolist() == [0, 1, 2, 3, 4, 5, 6, -1, -1]  # rows of padding


def test_a_special_token_without_a_row_in_the_base_is_no_token_of_it(tmp_path: Path) -> None:
    (tmp_path / "embedding_map.json").write_text('{"rows": [[0], [1, 0], [7], [2]]}')

    vocabulary = Vocabulary(tmp_path, 7, 4)

    assert vocabulary.is_known.tolist() == [True, False, False, True]
    assert vocabulary.expand(np.array([2, 1, 3], dtype=np.int32)).tolist() == [1, 0, 2]
