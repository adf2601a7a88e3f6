"""Signatures of millions of documents that nobody wrote, and the search for duplicates among them.

python signatures.py make|find FOLDER COUNT
"""

import sys
from pathlib import Path

import numpy as np

from anadil.clean.dedup.find_duplicates import DUPLICATE, NEAR_DUPLICATE, find_duplicates
from anadil.clean.dedup.sorted_documents import COLUMNS, Signatures, write_keys
from anadil.clean.filters.judge_record import Settings
from anadil.recipe.sections import Recipe

BANDS = 14
IN_SHARD = 100_000
FAMILIES = 100_000
"""One document in ten is equal to one of so many, and one in ten agrees with one of so many in a band."""


def make_shard(folder: Path, count: int, seed: int) -> None:
    """Write the columns of one shard."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(seed)
    table = {name: chance.integers(0, 2**31, count).astype(kind) for name, kind in COLUMNS.items()}
    table["id_high"] = np.sort(chance.integers(0, 2**64, count, dtype=np.uint64))
    table["exact_high"] = chance.integers(0, 2**63, count, dtype=np.uint64)
    equal = np.arange(2**63, 2**63 + FAMILIES, dtype=np.uint64)
    table["exact_high"][: count // 10] = chance.choice(equal, count // 10)
    table["exact_low"][:] = 0
    bands = chance.integers(FAMILIES, 2**64, (BANDS, count), dtype=np.uint64)
    bands[3, -(count // 10) :] = chance.integers(0, FAMILIES, count // 10, dtype=np.uint64)
    for name, column in table.items():
        np.save(folder / f"{name}.npy", column)
    np.save(folder / "bands.npy", bands)
    np.save(folder / "frames.npy", np.array([(count, 0)], dtype=[("first_row", "u8"), ("offset", "u8")]))
    write_keys(folder, table["exact_high"], bands)


def main() -> None:
    """Make or find."""
    action, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if action == "make":
        for start in range(0, count, IN_SHARD):
            make_shard(folder / f"{start:08}", min(IN_SHARD, count - start), start)
        return
    signatures = Signatures(sorted(folder.iterdir()))
    out = folder.with_name("verdicts")
    out.mkdir()
    verdicts = find_duplicates(signatures, Settings(recipe=Recipe()).minhash, out)
    print(f"{verdicts.count(DUPLICATE):,} duplicates, {verdicts.count(NEAR_DUPLICATE):,} near duplicates")


if __name__ == "__main__":
    main()
