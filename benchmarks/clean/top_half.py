"""Compare models trained on the half that a classifier of 300 labels prefers with models trained on a random half.

ANADIL_DATA=DIR OMP_NUM_THREADS=1 python -m benchmarks.clean.top_half [LANGUAGE]

The pool is half good and half bad by the rule of `teach.py`. Both halves have as many bytes, which are the tokens, and each
is read once by a Llama with random weights. The score is bits per byte on good text that neither the classifier nor the
model has seen.
"""

import math
import random
import sys
from collections.abc import Sequence

import numpy as np
import torch
from benchmarks.clean.teach import pieces
from benchmarks.random_model import model_of

from anadil.language.classifier import learn, shares_of_rows

LABELS, HELDOUT, TRAIN_BYTES = 300, 300, 600_000
CONTEXT, BATCH, LR = 128, 4, 2e-3
SEEDS = range(3)


def rows_of(texts: Sequence[str]) -> torch.Tensor:
    """Texts one behind the other, as rows of bytes."""
    data = np.frombuffer("\n".join(texts).encode(), np.uint8)
    return torch.from_numpy(data[: len(data) // CONTEXT * CONTEXT].reshape(-1, CONTEXT).astype(np.int64))


def bits_per_byte(train: Sequence[str], heldout: Sequence[str], seed: int) -> float:
    """Bits per byte of held-out text after one pass."""
    model = model_of(vocabulary=256, hidden=64, layers=3, context=CONTEXT, seed=seed)
    rows = rows_of(train)[: TRAIN_BYTES // CONTEXT]
    assert len(rows) == TRAIN_BYTES // CONTEXT, "the pool is too small"
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    batches = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))].split(BATCH)
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1, (step + 1) / 50) * (1 - step / len(batches))
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        losses = [
            model(input_ids=batch, labels=batch).loss.item() for batch in rows_of(heldout).split(64)[:-1]
        ]
    return float(np.mean(losses)) / math.log(2)


def main() -> None:
    """Print a row for each seed, which draws labels, halves and weights."""
    language = sys.argv[1] if len(sys.argv) > 1 else "az"
    print(
        "| language | seed | good in the top half | top half | random half | difference |\n|---|---:|---:|---:|---:|---:|"
    )
    for seed in SEEDS:
        texts = pieces(language, sys.maxsize)
        random.Random(seed).shuffle(texts)  # noqa: S311  no secret
        labelled, texts = texts[:LABELS], texts[LABELS:]
        heldout = [each.text for each in texts if each.is_good][:HELDOUT]
        pool = [each for each in texts if each.text not in set(heldout)]
        scores = shares_of_rows([each.text for each in pool]) @ learn(labelled).weights.astype(float)
        order = np.argsort(-scores, kind="stable")[: len(pool) // 2]
        best = [pool[place] for place in order]
        random.Random(seed).shuffle(best)  # noqa: S311  no secret
        top, drawn = (bits_per_byte([each.text for each in part], heldout, seed) for part in (best, pool))
        share = np.mean([each.is_good for each in best])
        print(
            f"| {language} | {seed} | {share:.3f} | {top:.3f} | {drawn:.3f} | {top - drawn:+.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
