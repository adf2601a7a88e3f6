"""How often a nominal 95 % interval on bits per byte holds the truth, by simulation on real documents.

python benchmarks/evaluate/coverage.py --scores FILE [--sizes 6 35 100 300] [--trials 1000]
python benchmarks/evaluate/coverage.py --text FILE.jsonl... --english FILE.jsonl --scores FILE

The first form reads `documents` of a scores.json: nats of each candidate, and bytes, by document. The second one makes
such a file first, in seconds: two models of byte trigrams, one of English and one that has half of the documents too,
score the other half.
These documents are the population, and its bits per byte the truth. A trial draws some documents from it, with
replacement, and makes each kind of interval of them.
"""

import argparse
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from anadil.evaluate.bootstrap import paired_difference

DRAWS = 2_000
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
    parser.add_argument("--english", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[6, 35, 100, 300])
    parser.add_argument("--trials", type=int, default=1_000)
    options = parser.parse_args()
    if options.text:
        make_scores(options.text, options.english, options.scores)
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


def resampled(bits: Numbers, num_bytes: Numbers, seed: int) -> Numbers:
    """Ratio of each draw."""
    chosen = np.random.default_rng(seed).integers(0, len(bits), (DRAWS, len(bits)))
    return np.asarray(bits[chosen].sum(1) / num_bytes[chosen].sum(1))


def percentile(bits: Numbers, num_bytes: Numbers, seed: int) -> Interval:
    """Percentiles of the draws."""
    low, high = np.percentile(resampled(bits, num_bytes, seed), [2.5, 97.5])
    return float(low), float(high)


def bca(bits: Numbers, num_bytes: Numbers, seed: int) -> Interval:
    """Percentiles corrected for bias and skew. Source: Efron 1987, "Better Bootstrap Confidence Intervals"."""
    ratios = resampled(bits, num_bytes, seed)
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
    """Interval as evaluate writes it: each draw in its own standard error."""
    nats = bits * math.log(2)
    difference = paired_difference(nats, np.zeros_like(nats), num_bytes.astype(np.int64), seed)
    return difference.low, difference.high


INTERVALS: dict[str, Callable[[Numbers, Numbers, int], Interval]] = {
    "anadil (bootstrap-t)": ours,
    "percentiles": percentile,
    "BCa": bca,
    "t": student,
}


def make_scores(files: Sequence[Path], english: Path, out: Path) -> None:
    """Two models of byte trigrams score one half of the documents: of English, and of English and the other half."""
    texts = [text for file in files for text in texts_of(file)]
    order = np.random.default_rng(0).permutation(len(texts))
    heldout = [texts[place] for place in order[1::2]]
    base = Trigrams(texts_of(english))
    adapted = Trigrams([*texts_of(english), *(texts[place] for place in order[::2])])
    documents = [
        {"num_bytes": len(text.encode()), "nats": {"base": base.nats(text), "adapted": adapted.nats(text)}}
        for text in heldout
    ]
    out.write_text(json.dumps({"documents": documents}), encoding="utf-8")


def texts_of(file: Path) -> list[str]:
    """Figures of a file's documents."""
    return [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]


class Trigrams:
    """Probabilities of a byte after the two before it, smoothed by those after one."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Count."""
        codes = codes_of("\n".join(texts))
        self._triples = np.bincount(codes[0], minlength=256**3).astype(np.float32)
        self._pairs = np.bincount(codes[1], minlength=256**2).astype(np.float32)
        self._after_two = self._triples.reshape(-1, 256).sum(1)
        self._after_one = self._pairs.reshape(-1, 256).sum(1)

    def nats(self, text: str) -> float:
        """-ln p of a text."""
        triples, pairs = codes_of("\n\n" + text)
        after_one = (self._pairs[pairs] + 1 / 256) / (self._after_one[pairs // 256] + 1)
        after_two = (self._triples[triples] + 5 * after_one) / (self._after_two[triples // 256] + 5)
        return float(-np.log(after_two.astype(np.float64)).sum())


def codes_of(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each three bytes as a number, and the last two of them."""
    codes = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    pairs = codes[1:-1] * 256 + codes[2:]
    return codes[:-2] * 65_536 + pairs, pairs


if __name__ == "__main__":
    main()
