"""Compare orders after a short training with the order after the whole one, by documents that are drawn again.

`python benchmarks/bases/rank.py SHORT.json WHOLE.json WORK`: the files are of `anadil bases ... -o json --work WORK` with `--trial 1`
and `--trial 100`.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

Json = dict[str, Any]
DRAWS = 1_000


def candidates(name: str) -> dict[str, Json]:
    """Entries by name."""
    return {each["name"]: each for each in json.loads(Path(name).read_text(encoding="utf-8"))["candidates"]}


def nats_of(entry: Json, work: Path) -> dict[int, Any]:
    """Step -> nats of each document, found by the scores of base and end."""
    scores = np.array([entry["trial"]["curve"][place]["bits_per_byte"] for place in (0, -1)])
    for file in work.glob("bases/tried/*/result.json"):
        stored = json.loads(file.read_text(encoding="utf-8"))["points"]
        points = {int(step): np.array(nats) for step, nats in stored.items()}
        sums = np.array([points[0].sum(), points[max(points)].sum()])
        if np.allclose(sums / np.log(2) / entry["taught"]["num_bytes"], scores, rtol=1e-9):
            return points
    raise SystemExit(f"{entry['name']}: no result in {work}")


def tau(one: Any, other: Any) -> float:
    """Kendall's tau of two lists of values."""
    pairs = itertools.combinations(range(len(one)), 2)
    return float(np.mean([np.sign((one[a] - one[b]) * (other[a] - other[b])) for a, b in pairs]))


def main() -> None:
    """Print values and taus."""
    short, whole = candidates(sys.argv[1]), candidates(sys.argv[2])
    work, names = Path(sys.argv[3]), sorted(short)
    before, after = ([nats_of(each[name], work) for name in names] for each in (short, whole))
    ends = [points[max(points)] for points in after]
    bits = np.log(2) * short[names[0]]["taught"]["num_bytes"]
    rows = {
        "before training": [points[0] for points in before],
        "short training": [points[max(points)] for points in before],
        # The rounded steps are those of `POINTS`, each of which the whole training has.
        **{
            f"{100 * 0.5 ** (place / 2):.0f} % of the whole": [
                sorted(points.items())[-1 - place][1] for points in after
            ]
            for place in range(8, -1, -1)
        },
    }
    print("", *(Path(name).name for name in names), "tau", sep=" | ")
    documents = len(ends[0])
    random = np.random.default_rng(0)
    drawn = [np.bincount(random.integers(0, documents, documents), minlength=documents) for _ in range(DRAWS)]
    for what, nats in rows.items():
        taus = [tau([row @ times for row in nats], [row @ times for row in ends]) for times in drawn]
        low, high = np.percentile(taus, [2.5, 97.5])
        point = tau([row.sum() for row in nats], [row.sum() for row in ends])
        print(
            what,
            *(f"{row.sum() / bits:.3f}" for row in nats),
            f"{point:.1f} [{low:.1f}, {high:.1f}]",
            sep=" | ",
        )
    shown = (short[name]["trial"]["extrapolated"] for name in names)
    print(
        "extrapolated",
        *(
            "{:.2f} [{:.2f}, {:.2f}]".format(each["bits_per_byte"], *each["bits_per_byte_interval"])
            for each in shown
        ),
        sep=" | ",
    )


if __name__ == "__main__":
    main()
