"""Index of the mix in clean weeks and in weeks of which half is of other origins: whether a limit could tell them apart.

ANADIL_DATA=DIR python benchmarks/retrain/mix.py [--languages az ja] [--draws 60]

Documents are dealt to weeks as in `poison.py`, in random order, and origins alone are counted. The index is the raw one,
without the part that chance explains.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2])]

from benchmarks.retrain.poison import Row, deal, documents  # noqa: E402

from anadil.admit.checks import HALF  # noqa: E402  scripts are installed nowhere

SHARE = 0.5
"""Part of a week that is of other origins."""
FEWEST, MOST = 60, 130
"""Documents of a week."""
EARLIER = 3
"""Weeks that come before the first that is looked at."""
RATES = (0.01, 0.02, 0.05)
"""Shares of clean weeks that a limit refuses."""


def index(week: list[Row], earlier: list[Row]) -> float:
    """Return the population stability index of the origins, those that are new taken together."""
    now, usual = (Counter(row["source"] for row in rows) for rows in (week, earlier))
    table = np.array([[each[place] for place in usual] for each in (now, usual)], dtype=np.float64)
    table = np.column_stack((table, [now.total() - table[0].sum(), 0.0])) + HALF
    shares, before = table / table.sum(axis=1, keepdims=True)
    return float(((shares - before) * np.log(shares / before)).sum())


def indices(language: str, seed: int) -> Iterator[tuple[bool, float]]:
    """Yield whether a week is poison, and its index."""
    texts, draw = documents(language, seed), random.Random(seed)  # noqa: S311  no secret
    sizes = [int(0.4 * sum(map(len, texts))), *(draw.randint(FEWEST, MOST) for _ in range(10))]
    weeks = [week for week in deal(texts, sizes) if len(week) >= FEWEST]
    for place in range(EARLIER, len(weeks)):
        yield False, index(weeks[place], list(chain(*weeks[:place])))
    earlier, last = list(chain(*weeks[:EARLIER])), weeks[EARLIER]
    most = Counter(row["source"] for row in earlier).most_common(1)[0][0]
    later = list(chain(*texts))[sum(sizes[: EARLIER + 1]) :]
    others, count = [row for row in later if row["source"] != most], int(SHARE * len(last))
    yield True, index([*last[count:], *others[:count]], earlier)


def main() -> None:
    """Print a Markdown table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--languages", nargs="+", default=["az", "ja"])
    options.add_argument("--draws", type=int, default=60)
    given = options.parse_args()
    print("| language | clean weeks | their index, median and 95 % | poisoned weeks, median | " + " | ".join(
        f"poison refused where {rate:.0%} of clean weeks are (limit)" for rate in RATES) + " |")  # fmt: skip
    print("|---|---:|---:|---:|" + "---:|" * len(RATES))
    for language in given.languages:
        drawn = list(chain(*(indices(language, seed) for seed in range(given.draws))))
        clean, poison = (
            np.array([value for kind, value in drawn if kind is is_poison]) for is_poison in (False, True)
        )
        limits = np.quantile(clean, [1 - rate for rate in RATES])
        cells = [f"{np.mean(poison > limit):.0%} ({limit:.2f})" for limit in limits]
        middle, high = np.quantile(clean, [0.5, 0.95])
        print(
            f"| {language} | {len(clean)} | {middle:.2f}, {high:.2f} | {np.median(poison):.2f} | {' | '.join(cells)} |"
        )


if __name__ == "__main__":
    main()
