"""Compare models trained on the half that a classifier of 300 labels prefers with models trained on a random half.

ANADIL_DATA=DIR OMP_NUM_THREADS=1 python -m benchmarks.clean.top_half [LANGUAGE] [--base DIR]

The pool is half good and half bad by the rule of `teach.py`. Both halves have as many tokens, and each is read once, by a
Llama with random weights that reads bytes, or by a real base. The score is bits per byte on good text that neither the
classifier nor the training has seen.
"""

import argparse
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.clean.teach import pieces
from benchmarks.random_model import model_of

from anadil.language.classifier import learn, shares_of_rows

LABELS, HELDOUT, TRAIN_BYTES = 300, 300, 600_000
CONTEXT, BATCH, LR = 128, 4, 2e-3
BASE_ROWS, BASE_CONTEXT, BASE_BATCH, BASE_LR, BASE_HELDOUT = 120, 256, 2, 3e-4, 200
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


def bits_per_byte_of_base(base: Path, train: Sequence[str], heldout: Sequence[str], seed: int) -> float:
    """Bits per byte of each held-out text on its own, after a base has read as many tokens of the training text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    ids: list[int] = []
    for text in train:
        ids += [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        if len(ids) >= BASE_ROWS * BASE_CONTEXT:
            break
    rows = torch.tensor(ids[: BASE_ROWS * BASE_CONTEXT]).reshape(BASE_ROWS, BASE_CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=BASE_LR, weight_decay=0.0)
    batches = rows[torch.randperm(BASE_ROWS, generator=torch.Generator().manual_seed(seed))].split(BASE_BATCH)
    in_bf16 = torch.autocast("cpu", torch.bfloat16)
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = BASE_LR * min(1, (step + 1) / 5) * (1 - step / len(batches))
        with in_bf16:
            model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    nats = num_bytes = 0.0
    with torch.no_grad(), in_bf16:
        for text in heldout[:BASE_HELDOUT]:
            row = torch.tensor([[tokenizer.eos_token_id, *tokenizer(text)["input_ids"]]])
            nats += model(input_ids=row, labels=row).loss.item() * (row.shape[1] - 1)
            num_bytes += len(text.encode())
    return nats / num_bytes / math.log(2)


def main() -> None:
    """Print a row for each seed, which draws labels, halves and weights."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("language", nargs="?", default="az")
    asked.add_argument(
        "--base", type=Path, help="directory of a base; a Llama with random weights without it"
    )
    options = asked.parse_args()
    language = options.language
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
        halves = ([each.text for each in part] for part in (best, pool))
        top, drawn = (
            bits_per_byte_of_base(options.base, half, heldout, seed)
            if options.base
            else bits_per_byte(half, heldout, seed)
            for half in halves
        )
        share = np.mean([each.is_good for each in best])
        print(
            f"| {language} | {seed} | {share:.3f} | {top:.3f} | {drawn:.3f} | {top - drawn:+.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
