"""A linear classifier of texts on hashed character n-grams, and how well it does on texts that it has not seen."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import diags
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import precision_score, recall_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import TargetEncoder, normalize

from anadil.language.fasttext_file import BUCKETS, ngram_rows
from anadil.language.labels import LabelledText
from anadil.text.fasttext_model import one_line

PARTS = 5
"""Each text is scored by the classifier of the other parts."""
DRAWS = 1_000
"""Draws of texts for the interval."""
SCALE = 1_000.0
"""A share of n-grams is small beside the penalty of weights. 10 and 100 were worse (benchmarks/clean)."""

SMOOTHING = 1e-4
"""Share of n-grams that is added to each. 1e-3 and 1e-5 were worse (benchmarks/clean)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A classifier with its figures on unseen texts."""

    weights: NDArray[np.float32]
    """Weight of each bucket, with the bias in all. Their mean over a text's n-grams is its log-odds of being good."""
    precision: float
    recall: float
    auc: float
    auc_interval: tuple[float, float]
    """95 %, over texts."""
    source_auc: float | None
    """AUC of a judge who knows only where a text is from. None if no two sources are named."""


def learn(texts: Sequence[LabelledText]) -> Fit:
    """Learn from all texts. The figures are of classifiers that did not see the text."""
    shares, good = shares_of_rows([each.text for each in texts]), np.array([each.is_good for each in texts])
    scores, by_source = np.zeros(len(texts)), np.zeros(len(texts))
    sources = np.array([[each.source] for each in texts])
    for seen, unseen in StratifiedKFold(PARTS, shuffle=True, random_state=0).split(shares, good):
        scores[unseen] = shares[unseen] @ _weights(shares[seen], good[seen])
        # Share of good texts of each source, drawn to the share of all where the source has few.
        encoder = TargetEncoder(smooth=1.0).fit(sources[seen], good[seen])
        by_source[unseen] = encoder.transform(sources[unseen]).ravel()
    return Fit(
        weights=_weights(shares, good).astype(np.float32), precision=float(precision_score(good, scores > 0, zero_division=0.0)),
        recall=float(recall_score(good, scores > 0)), auc=float(roc_auc_score(good, scores)),
        auc_interval=_interval(good, scores), source_auc=float(roc_auc_score(good, by_source)) if len(np.unique(sources)) > 1 else None,
    )  # fmt: skip


def shares_of_rows(texts: Sequence[str]) -> Any:
    """Share of each row among the n-grams of a text and its end, as fastText averages them: texts x rows, sparse."""
    rows_of = functools.cache(ngram_rows)

    def rows_of_text(text: str) -> list[int]:
        return [0, *(row for word in one_line(text).split() for row in rows_of(word))]

    counter = CountVectorizer(analyzer=rows_of_text, vocabulary=range(BUCKETS + 1))
    return normalize(counter.transform(texts), norm="l1")


def _weights(shares: Any, good: NDArray[np.bool_]) -> NDArray[np.float64]:
    ratios = _ratios(shares, good)
    # liblinear needs a third of the time of lbfgs, whose BLAS threads also spin while others work.
    fitted = LogisticRegression(class_weight="balanced", solver="liblinear").fit(shares @ diags(ratios), good)
    weights: NDArray[np.float64] = fitted.coef_[0] * ratios + fitted.intercept_[0]
    return weights


def _ratios(shares: Any, good: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Scale of each row: the log ratio of its mean shares in good and bad texts. Few labels fit few rows so.

    Source: Wang and Manning 2012, Baselines and Bigrams, ACL P12-2018, section 2.3.
    """
    of_good, of_bad = (
        np.asarray(shares[chosen].mean(axis=0)).ravel() + SMOOTHING for chosen in (good, ~good)
    )
    ratios: NDArray[np.float64] = SCALE * np.abs(np.log(of_good / of_bad))
    return ratios


def _interval(good: NDArray[np.bool_], scores: NDArray[np.float64]) -> tuple[float, float]:
    rng, areas = np.random.default_rng(0), []
    for _ in range(DRAWS):
        drawn = rng.integers(0, len(good), len(good))
        if 0 < good[drawn].sum() < len(drawn):
            areas.append(roc_auc_score(good[drawn], scores[drawn]))
    low, high = np.percentile(areas, (2.5, 97.5))
    return float(low), float(high)
