import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anadil.artifacts import artifact
from anadil.core.errors import DataError, PreflightError
from anadil.distill import run as distill
from anadil.distill.teach import BaseTeacher, Vocabulary
from anadil.model.load import load_model
from anadil.recipe.sections import Recipe
from anadil.tokens.packing import cut_pieces
from anadil.tokens.probabilities import StoredProbabilities, open_probabilities, token_bytes
from anadil.tokens.stored_tokens import StoredTokens, open_tokens
from tests.kit.pretraining import make_model
from tests.kit.sources import make_source_corpora
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
    assert opened.facts.id_dtype == "U16"
    assert ids.shape[1] == K
    file = next(Path(opened.uri).glob("part-*"))
    assert file.stat().st_size < 1024 + token_bytes(K, 300) * opened.facts.tokens + 8


def test_the_base_s_loss_on_held_out_text_is_in_its_own_tokens(tmp_path: Path, recipe: Recipe) -> None:
    opened, tokens = stored(tmp_path, recipe)
    documents, num_bytes = tokens.heldout(200)
    model: Any = load_model(tmp_path / "model")

    nats = 0.0
    for document in documents:
        # None is longer than a piece of training but by its end, where the context begins anew.
        pieces = [document[at : at + 33] for at in range(0, len(document) - 1, 32)]
        for piece in pieces:
            base_ids = torch.tensor([part for token in piece.tolist() for part in ROWS[token]])
            skipped = len(ROWS[int(piece[0])])
            logits = model(input_ids=base_ids[None]).logits[0].double().log_softmax(-1)
            nats -= logits[torch.arange(len(base_ids) - 1), base_ids[1:]][skipped - 1 :].sum().item()

    assert opened.facts.heldout_nats == pytest.approx(nats, rel=1e-5)
    assert (opened.facts.heldout_documents, opened.facts.heldout_bytes) == (2, num_bytes)


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


def test_a_base_that_gives_nan_is_an_error_that_names_the_document(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = BaseTeacher._hidden

    def broken(self: BaseTeacher, batch: Any) -> torch.Tensor:
        states = hidden(self, batch)
        begin = sum(len(row.base_ids) for row in batch[:4])
        states[begin : begin + 5] = torch.nan
        return states

    monkeypatch.setattr(BaseTeacher, "_hidden", broken)

    with pytest.raises(
        DataError, match=r"part-00000.safetensors, .*: document 1 \(from 0\): the base gives NaN or Inf"
    ):
        probabilities(tmp_path, recipe)


def test_a_vocabulary_without_a_map_is_the_base_s(tmp_path: Path) -> None:
    (tmp_path / "embedding_map.json").write_text('{"rows": null}')

    vocabulary = Vocabulary(tmp_path, 7)

    assert vocabulary.is_known.all()
    assert vocabulary.expand(np.array([3, 1], dtype=np.int32)).tolist() == [3, 1]
