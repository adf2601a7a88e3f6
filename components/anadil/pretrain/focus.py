"""FOCUS: a new token's row as a mean of the rows of old tokens that the corpus uses alike.

Tokens are compared by vectors of the words around them in the corpus: positive pointwise mutual
information, reduced by a singular value decomposition. Sparsemax turns similarities into weights,
most of them 0.

Source: Dobler and de Melo 2023, arXiv:2305.14481; there with vectors of fastText. The vectors are
those of Levy, Goldberg and Dagan 2015, "Improving Distributional Similarity with Lessons Learned
from Word Embeddings", with their smoothing of contexts; sparsemax that of Martins and Astudillo
2016, arXiv:1602.02068.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from anadil.artifacts.base_model import read_tokenizer
from anadil.pretrain.embedding_init import Weighted, embedding_map
from anadil.text.corpus import read_documents
from anadil.text.encoder import Encoder

log = logging.getLogger(__name__)

Array = npt.NDArray[np.int64]

SAMPLE_TOKENS = 2_000_000
"""Tokens of the corpus that are sampled."""
DOCUMENTS_AT_A_TIME = 256
WINDOW = 5
"""Tokens on each side that count as around a token. Source: fastText's default."""
MIN_COUNT = 10
"""Occurrences from which on a token has a vector. Source: FOCUS, section 3 of its code's defaults."""
WIDTH = 256
"""Of the vectors. Assumption; FOCUS has 300."""
SMOOTHING = 0.75
"""Power of the contexts' counts. Source: Levy et al., section 3.2."""
ROWS_AT_A_TIME = 512


def similar_tokens(corpus: Path, tokenizer: Path, seed: int) -> Weighted:
    """Base rows and their weights for each new token that the corpus uses often enough.

    Args:
        corpus: The corpus artifact; its first documents are read.
        tokenizer: The tokenizer artifact.
        seed: Of the decomposition.

    Raises:
        DataError: The tokenizer has no embedding map.
    """
    rows = embedding_map(tokenizer)
    if rows is None:
        return {}
    ids, documents = _sample(corpus, tokenizer)
    counts = np.bincount(ids, minlength=len(rows))
    frequent = np.flatnonzero(counts >= MIN_COUNT)
    shared = [token for token in frequent.tolist() if len(rows[token]) == 1]
    new = [token for token in frequent.tolist() if len(rows[token]) > 1]
    log.info("focus: %s of the new tokens by %s of the base's", f"{len(new):,}", f"{len(shared):,}")
    if not shared or not new:
        return {}
    vectors = token_vectors(ids, documents, frequent, seed)
    place = np.full(len(rows), -1)
    place[frequent] = np.arange(len(frequent))
    sources = [rows[token][0] for token in shared]
    return dict(_weights(new, vectors[place[new]], sources, vectors[place[shared]]))


def _sample(corpus: Path, tokenizer: Path) -> tuple[Array, Array]:
    """Ids of the first tokens of the corpus, and the number of the document of each."""
    encoder = Encoder(read_tokenizer(tokenizer))
    texts = (document.text for document in read_documents(corpus, "train"))
    ids: list[Array] = []
    num_tokens = 0
    while num_tokens < SAMPLE_TOKENS and (batch := list(islice(texts, DOCUMENTS_AT_A_TIME))):
        for found in encoder.encode(batch):
            ids.append(found.astype(np.int64))
            num_tokens += len(found)
    lengths = [len(each) for each in ids]
    return np.concatenate(ids)[:SAMPLE_TOKENS], np.repeat(np.arange(len(ids)), lengths)[:SAMPLE_TOKENS]


def token_vectors(ids: Array, documents: Array, chosen: Array, seed: int) -> torch.Tensor:
    """A vector of length 1 for each of the chosen tokens: (tokens, at most 256).

    Args:
        ids: Tokens of a text.
        documents: Number of the document that each belongs to; a window ends with it.
        chosen: The tokens, ascending, each in the text.
        seed: Of the decomposition.
    """
    size = len(chosen)
    place = np.full(int(ids.max()) + 1, -1)
    place[chosen] = np.arange(size)
    text = place[ids]
    keys = []
    for distance in range(1, min(WINDOW, len(ids) - 1) + 1):
        left, right = text[:-distance], text[distance:]
        valid = (left >= 0) & (right >= 0) & (documents[:-distance] == documents[distance:])
        keys += [left[valid] * size + right[valid], right[valid] * size + left[valid]]
    pairs, number = np.unique(np.concatenate(keys), return_counts=True)
    left, right = pairs // size, pairs % size
    total = np.bincount(left, weights=number, minlength=size)
    contexts = total**SMOOTHING
    information = np.log(number * contexts.sum() / (total[left] * contexts[right]))
    positive = information > 0
    matrix = torch.sparse_coo_tensor(
        torch.from_numpy(np.stack([left[positive], right[positive]])),
        torch.from_numpy(information[positive].astype(np.float32)),
        (size, size),
        check_invariants=True,
    ).coalesce()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bases, values, _ = torch.svd_lowrank(matrix, q=min(WIDTH, size))
    return torch.nn.functional.normalize(bases * values.sqrt())


def _weights(
    new: Sequence[int], vectors: torch.Tensor, sources: Sequence[int], known: torch.Tensor
) -> Iterator[tuple[int, tuple[list[int], list[float]]]]:
    for start in range(0, len(new), ROWS_AT_A_TIME):
        shares = sparsemax(vectors[start : start + ROWS_AT_A_TIME] @ known.T)
        for token, row in zip(new[start : start + ROWS_AT_A_TIME], shares, strict=True):
            places = row.nonzero().flatten()
            yield token, ([sources[place] for place in places.tolist()], row[places].tolist())


def sparsemax(scores: torch.Tensor) -> torch.Tensor:
    """The nearest distribution to each row of scores: at least 0, sum 1, most of it 0.

    Args:
        scores: (rows, choices).

    Source: Martins and Astudillo 2016, arXiv:1602.02068, algorithm 1.
    """
    falling, _ = scores.sort(dim=-1, descending=True)
    sums = falling.cumsum(-1)
    ranks = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    num_chosen = (1 + ranks * falling > sums).sum(-1, keepdim=True)
    threshold = (sums.gather(-1, num_chosen - 1) - 1) / num_chosen
    return (scores - threshold).clamp_min(0)
