"""How well a classifier does that `anadil clean teach` learns from 300 labels, beside 3,000, in three languages.

ANADIL_DATA=DIR OMP_NUM_THREADS=1 python -m benchmarks.clean.teach

Texts are pieces of 300 characters out of all sources of a language. A rule stands in for a person: of each source, the third
with most letters is good (prose), and the third with fewest is bad (code, tables, lists, references). So the source says
nothing. Both classifiers score the same 1,000 other pieces.
"""

import random
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from benchmarks.stage_runs import documents
from sklearn.metrics import roc_auc_score

from anadil.language.classifier import learn, shares_of_rows
from anadil.language.labels import LabelledText

CHARS, SCORED, SIZES = 300, 1_000, (300, 3_000)


def pieces(language: str, most: int = max(SIZES) + SCORED) -> list[LabelledText]:
    """Labelled pieces of a language's documents, shuffled; `most` of them."""
    cut: dict[str, list[str]] = defaultdict(list)
    for file, text in documents(language):
        cut[file] += [text[at : at + CHARS] for at in range(0, len(text) - CHARS + 1, CHARS)]
    labelled = []
    for file, texts in cut.items():
        ranked = sorted(texts, key=lambda text: sum(map(str.isalpha, text)))
        third = len(ranked) // 3
        for texts_of, good in ((ranked[:third], False), (ranked[len(ranked) - third :], True)):
            labelled += [LabelledText(text=text, is_good=good, source=file) for text in texts_of]
    random.Random(0).shuffle(labelled)  # noqa: S311  no secret
    return labelled[:most]


def auc(weights: np.ndarray, texts: Sequence[LabelledText]) -> float:
    """Area under the curve on texts."""
    scores = shares_of_rows([each.text for each in texts]) @ weights.astype(float)
    return float(roc_auc_score([each.is_good for each in texts], scores))


def main() -> None:
    """Print a row for each language."""
    print(
        "| language | labels | AUC, other 1,000 | AUC, unseen labels | source alone | CPU s |\n|---|---:|---:|---:|---:|---:|"
    )
    for language in ("az", "en", "ja"):
        texts = pieces(language)
        for size in SIZES:
            begun = time.process_time()
            fit = learn(texts[SCORED : SCORED + size])
            used = time.process_time() - begun
            low, high = fit.auc_interval
            print(
                f"| {language} | {len(texts[SCORED : SCORED + size]):,} | {auc(fit.weights, texts[:SCORED]):.3f} | {fit.auc:.3f} "
                f"[{low:.3f}, {high:.3f}] | {fit.source_auc or 0:.3f} | {used:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
