from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anadil.artifacts.base_model import read_tokenizer
from anadil.pretrain.focus import similar_tokens, sparsemax, token_vectors
from tests.kit.pretraining import SPECIALS, make_corpus, make_tokenizer_artifact
from tests.kit.pretraining_texts import PRETRAINING_TEXTS

SCORES = st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20)


@settings(max_examples=100, deadline=None)
@given(scores=SCORES)
def test_sparsemax_is_the_nearest_distribution(scores: list[float]) -> None:
    given_scores = torch.tensor([scores], dtype=torch.float64)

    shares = sparsemax(given_scores)[0]

    chosen = shares > 0
    gap = given_scores[0] - shares
    assert abs(float(shares.sum()) - 1) < 1e-9
    # The conditions of Karush, Kuhn and Tucker: one gap where a share is above 0, none larger elsewhere.
    assert torch.allclose(gap[chosen], gap[chosen][0].expand(int(chosen.sum())))
    assert bool((gap[~chosen] <= gap[chosen][0] + 1e-9).all())


def test_scores_far_below_the_best_weigh_nothing() -> None:
    shares = sparsemax(torch.tensor([[0.9, 0.7, -0.5]]))

    assert torch.allclose(shares, torch.tensor([[0.6, 0.4, 0.0]]))


def test_tokens_among_the_same_neighbours_have_near_vectors() -> None:
    random = np.random.default_rng(3)
    # 0 and 1 stand among tokens 4 to 9, 2 and 3 among 10 to 15.
    documents = []
    for number in range(400):
        token = number % 4
        around = random.permutation(np.arange(4, 10) if token < 2 else np.arange(10, 16))
        documents.append(np.concatenate([around[:3], [token], around[3:]]))
    ids = np.concatenate(documents)
    numbers = np.repeat(np.arange(400), 7)

    vectors = token_vectors(ids, numbers, np.arange(16), seed=1)
    again = token_vectors(ids, numbers, np.arange(16), seed=1)

    alike = vectors[:4] @ vectors[:4].T
    assert alike[0, 1] > 0.9
    assert alike[2, 3] > 0.9
    assert alike[:2, 2:].max() < 0.5
    assert torch.equal(vectors, again)


def test_a_control_token_that_a_text_names_is_no_use_of_it(tmp_path: Path) -> None:
    """Its row stands for the end of a document, not for a word."""
    control = 299
    rows = [[token] for token in range(280)] + [[0, 1]] * 20
    tokenizer = make_tokenizer_artifact(tmp_path / "tokenizer", rows)
    assert read_tokenizer(tokenizer).id_to_token(control) in SPECIALS
    named = [f"{text} {name}" for text in PRETRAINING_TEXTS for name in SPECIALS] * 3
    corpus = make_corpus(tmp_path / "corpus", named)

    assert control not in similar_tokens(corpus, tokenizer, seed=1)
