"""How often a nominal 95 % interval on bits per byte holds the truth, by simulation on real documents.

OMP_NUM_THREADS=1 python benchmarks/evaluate/coverage.py --scores FILE [--sizes 6 35 100 300] [--trials 1000]
OMP_NUM_THREADS=1 python benchmarks/evaluate/coverage.py --text FILE.jsonl... --scores FILE --cache DIR

The first form reads `documents` of a scores.json: nats of each candidate, and bytes, by document. The second one makes
such a file first: `tiny` is trained for 150 steps on half of the documents, and scores the other half before and after.
These documents are the population, and its bits per byte the truth. A trial draws some documents from it, with
replacement, and makes each kind of interval of them.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anadil.evaluate.bootstrap import paired_difference

DRAWS = 2_000
STEPS, ROWS, LENGTH, RATE = 150, 8, 128, 2e-3
MAX_LETTERS = 20_000
T_97_5 = {6: 2.5706, 35: 2.0322, 100: 1.9842, 300: 1.9679}
"""By the number of documents. Source: any table of Student's t, 5, 34, 99 and 299 degrees of freedom."""
Numbers = NDArray[np.float64]
Interval = tuple[float, float]


def main() -> None:
    """Print a row for each size and kind of interval."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--text", type=Path, nargs="*", default=[])
    parser.add_argument("--cache", type=Path, help="where `tiny` is kept")
    parser.add_argument("--sizes", type=int, nargs="+", default=[6, 35, 100, 300])
    parser.add_argument("--trials", type=int, default=1_000)
    options = parser.parse_args()
    if options.text:
        make_scores(options.text, options.cache, options.scores)
    documents = json.loads(options.scores.read_text(encoding="utf-8"))["documents"]
    num_bytes = np.array([one["num_bytes"] for one in documents], dtype=np.float64)
    nats = {name: np.array([one["nats"][name] for one in documents]) for name in documents[0]["nats"]}
    differences = {"adapted - base": nats["adapted"] - nats["base"], "adapted": nats["adapted"]}
    print(
        f"{len(documents)} documents, {np.median(num_bytes):,.0f} bytes in the middle, {num_bytes.max():,.0f} at most; "
        f"{options.trials} trials, load {os.getloadavg()[0]:.1f}\n"
    )
    print(f"| figure | documents | {' | '.join(INTERVALS)} |\n|---|---:|{'---|' * len(INTERVALS)}")
    for figure, values in differences.items():
        for size in options.sizes:
            print(
                f"| {figure} | {size} | {' | '.join(covered(values, num_bytes, size, options.trials))} |",
                flush=True,
            )


def covered(nats: Numbers, num_bytes: Numbers, size: int, trials: int) -> list[str]:
    """Share of the intervals of each kind that hold the truth, and their median width."""
    bits = nats / math.log(2)
    truth = bits.sum() / num_bytes.sum()
    random = np.random.default_rng(size)
    held = dict.fromkeys(INTERVALS, 0)
    widths: dict[str, list[float]] = {name: [] for name in INTERVALS}
    for trial in range(trials):
        chosen = random.integers(0, len(bits), size)
        for name, interval in INTERVALS.items():
            low, high = interval(bits[chosen], num_bytes[chosen], trial)
            held[name] += low <= truth <= high
            widths[name].append(high - low)
    return [f"{held[name] / trials:.1%} ({np.median(widths[name]):.3f})" for name in INTERVALS]


def resampled(bits: Numbers, num_bytes: Numbers, seed: int) -> tuple[Numbers, Numbers]:
    """Ratio of each draw, and its standard error."""
    chosen = np.random.default_rng(seed).integers(0, len(bits), (DRAWS, len(bits)))
    own, size = bits[chosen], num_bytes[chosen]
    ratios = own.sum(1) / size.sum(1)
    rest = own - ratios[:, None] * size
    errors = np.sqrt((rest**2).sum(1) * len(bits) / max(1, len(bits) - 1)) / size.sum(1)
    return ratios, errors


def percentile(bits: Numbers, num_bytes: Numbers, seed: int) -> Interval:
    """Percentiles of the draws."""
    low, high = np.percentile(resampled(bits, num_bytes, seed)[0], [2.5, 97.5])
    return float(low), float(high)


def bca(bits: Numbers, num_bytes: Numbers, seed: int) -> Interval:
    """Percentiles corrected for bias and skew. Source: Efron 1987, "Better Bootstrap Confidence Intervals"."""
    ratios = resampled(bits, num_bytes, seed)[0]
    normal = NormalDist()
    below = float((ratios < bits.sum() / num_bytes.sum()).mean())
    bias = normal.inv_cdf(min(max(below, 1 / DRAWS), 1 - 1 / DRAWS))
    left_out = (bits.sum() - bits) / (num_bytes.sum() - num_bytes)
    gap = left_out.mean() - left_out
    skew = float((gap**3).sum() / (6 * (gap**2).sum() ** 1.5 + 1e-300))
    shares = []
    for share in (0.025, 0.975):
        z = bias + normal.inv_cdf(share)
        shares.append(100 * normal.cdf(bias + z / (1 - skew * z)))
    low, high = np.percentile(ratios, shares)
    return float(low), float(high)


def studentized(bits: Numbers, num_bytes: Numbers, seed: int) -> Interval:
    """Bootstrap-t: percentiles of each draw's distance in its own standard errors."""
    ratios, errors = resampled(bits, num_bytes, seed)
    value = bits.sum() / num_bytes.sum()
    rest = bits - value * num_bytes
    error = math.sqrt((rest**2).sum() * len(bits) / (len(bits) - 1)) / num_bytes.sum()
    low, high = np.percentile((ratios - value) / np.maximum(errors, 1e-12), [2.5, 97.5])
    return float(value - high * error), float(value - low * error)


def student(bits: Numbers, num_bytes: Numbers, seed: int) -> Interval:
    """The t-interval of a ratio. Source: Cochran 1977, "Sampling Techniques", section 6.4."""
    del seed
    count = len(bits)
    value = bits.sum() / num_bytes.sum()
    rest = bits - value * num_bytes
    error = math.sqrt((rest**2).sum() * count / (count - 1)) / num_bytes.sum()
    half = T_97_5[count] * error
    return float(value - half), float(value + half)


def ours(bits: Numbers, num_bytes: Numbers, seed: int) -> Interval:
    """What evaluate writes."""
    nats = bits * math.log(2)
    found = paired_difference(nats, np.zeros_like(nats), num_bytes.astype(np.int64), seed)
    return found.low, found.high


INTERVALS: dict[str, Callable[[Numbers, Numbers, int], Interval]] = {
    "anadil": ours,
    "percentiles": percentile,
    "BCa": bca,
    "bootstrap-t": studentized,
    "t": student,
}


def make_scores(files: Sequence[Path], cache: Path, out: Path) -> None:
    """Train `tiny` on one half of the documents, and score the other half before and after."""
    import torch

    from anadil.evaluate.bits_per_byte import score
    from anadil.model.load import encode_texts, load_model, load_tokenizer
    from anadil.model.tiny import base_model
    from anadil.recipe.sections import Base

    path = base_model(Base(model="tiny"), cache)
    tokenizer: Any = load_tokenizer(path)
    model: Any = load_model(path)
    texts = [
        json.loads(line)["text"][:MAX_LETTERS]
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    order = np.random.default_rng(0).permutation(len(texts))
    train = encode_texts(tokenizer, [texts[place] for place in order[::2]])
    heldout = [texts[place] for place in order[1::2]]
    ids = [np.array(own, dtype=np.int32) for own in encode_texts(tokenizer, heldout)]

    def scored(name: str) -> Numbers:
        start = time.process_time()
        nats: Numbers = score(
            model, ids, prefix=tokenizer.bos_token_id, context=256, stride=256, batch_tokens=4_096, name=name
        )
        print(f"{name}: {sum(map(len, ids)):,} tokens, {time.process_time() - start:.0f} CPU s", flush=True)
        return nats

    base = scored("base")
    flat = torch.tensor(np.concatenate([np.array(own, dtype=np.int64) for own in train]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    random = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(STEPS):
        starts = torch.randint(0, len(flat) - LENGTH, (ROWS,), generator=random)
        rows = torch.stack([flat[start : start + LENGTH] for start in starts.tolist()])
        model(input_ids=rows, labels=rows, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    adapted = scored("adapted")
    rows_of = zip(heldout, base.tolist(), adapted.tolist(), strict=True)
    documents = [
        {"num_bytes": len(text.encode()), "nats": {"base": first, "adapted": second}}
        for text, first, second in rows_of
    ]
    out.write_text(json.dumps({"documents": documents}), encoding="utf-8")


if __name__ == "__main__":
    main()
