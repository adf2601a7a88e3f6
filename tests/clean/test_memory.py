"""What dedup takes of memory where there are millions of documents."""

from pathlib import Path

import pytest

from tests.kit.child import peak_memory
from tests.kit.marks import matrix, slow

NUM_IN_CLUSTER = 60_000
SIGNATURES = """
import sys
from pathlib import Path
import numpy as np
from anadil.clean.dedup.find_duplicates import DUPLICATE, NEAR_DUPLICATE, find_duplicates
from anadil.clean.dedup.sorted_documents import Signatures
from anadil.clean.dedup.sorted_documents import COLUMNS, write_keys

class MinHash:
    bands = 14

folder, rng, size = Path(sys.argv[1]), np.random.default_rng(0), 100_000
for number in range(int(sys.argv[2])):
    shard = folder / f"{number:02}"
    shard.mkdir()
    table = {name: rng.integers(0, 2**31, size).astype(kind) for name, kind in COLUMNS.items()}
    table["id_high"] = np.sort(rng.integers(0, 2**64, size, dtype=np.uint64))
    # One in ten is equal to one of 100,000 texts, and one in ten agrees with one of 100,000 families in a band.
    equal, families = np.arange(2**63, 2**63 + 10**5, dtype=np.uint64), np.arange(10**5, dtype=np.uint64)
    table["exact_high"] = rng.integers(0, 2**63, size, dtype=np.uint64)
    table["exact_high"][:10_000], table["exact_low"][:] = rng.choice(equal, 10_000), 0
    bands = rng.integers(10**5, 2**64, (14, size), dtype=np.uint64)
    bands[3, -10_000:] = rng.choice(families, 10_000)
    for name, column in table.items():
        np.save(shard / f"{name}.npy", column)
    np.save(shard / "bands.npy", bands)
    np.save(shard / "frames.npy", np.array([(size, 0)], dtype=[("first_row", "u8"), ("offset", "u8")]))
    write_keys(shard, table["exact_high"], bands)
signatures = Signatures(sorted(folder.iterdir()))
(folder / "verdicts").mkdir()
verdicts = find_duplicates(signatures, MinHash(), folder / "verdicts")
print(signatures.num_documents, verdicts.count(DUPLICATE), verdicts.count(NEAR_DUPLICATE))
"""
ONE_CLUSTER = """
import json, random, sys
from pathlib import Path
import numpy as np
from anadil.clean.kernels.minhash import MinHash
from anadil.clean.dedup.find_duplicates import NEAR_DUPLICATE, find_duplicates
from anadil.clean.dedup.sorted_documents import Signatures
from anadil.clean.dedup.sorted_documents import DocumentWriter, KeptDocument
from anadil.text.language import load_language

folder, num_documents, draw = Path(sys.argv[1]), int(sys.argv[2]), random.Random(0)
rng, words = np.random.default_rng(0), [f"{chr(97 + n // 676)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}" for n in range(5_000)]
base = draw.choices(words, k=20)
folders = []
for start in range(0, num_documents, 100_000):
    folders.append(folder / f"{start:08}")
    folders[-1].mkdir()
    writer = DocumentWriter(folders[-1], 14)
    for number in range(start, min(start + 100_000, num_documents)):
        # Every other one resembles the first; all agree in a band, and pairs in another.
        own = str(number).translate(str.maketrans("0123456789", "abcdefghij"))  # figures alone make no other text
        text = " ".join([*base, own] if number % 2 else draw.choices(words, k=20))
        keys = rng.integers(0, 2**64, 14, dtype=np.uint64)
        keys[0], keys[1] = 7, number // 2
        writer.add(KeptDocument(
            id=f"{draw.getrandbits(128):032x}", line=json.dumps({"id": "", "text": text}).encode() + b"\\n",
            exact_key=draw.getrandbits(128), band_keys=keys, weight=len(text), num_bytes=len(text), num_words=21,
            record=number,
        ))
    writer.finish()
(folder / "verdicts").mkdir()
minhash = MinHash(load_language("az"), bands=14, rows=8, shingle=5)
verdicts = find_duplicates(Signatures(folders), minhash, folder / "verdicts")
print(verdicts.count(NEAR_DUPLICATE), int(verdicts.cluster_size.max()))
"""


@pytest.mark.parametrize(("num_shards", "most_mib"), [slow(10, 230), matrix(50, 600)])
def test_five_million_signatures_take_less_than_two_gib(
    tmp_path: Path, num_shards: int, most_mib: float
) -> None:
    peak, printed = peak_memory(SIGNATURES, tmp_path, num_shards)

    num_documents, num_equal, num_alike = map(int, printed.split())
    assert num_documents == 100_000 * num_shards
    # All but the first of each of 100,000 texts or families.
    for found in (num_equal, num_alike):
        assert 3_500 * num_shards < found < 8_100 * num_shards
    assert peak < most_mib


@pytest.mark.slow
def test_documents_in_one_cluster_take_as_much_memory_as_their_keys(tmp_path: Path) -> None:
    peak, printed = peak_memory(ONE_CLUSTER, tmp_path, NUM_IN_CLUSTER)

    num_alike, cluster_size = map(int, printed.split())
    assert cluster_size == NUM_IN_CLUSTER
    assert NUM_IN_CLUSTER // 2 - 1_000 < num_alike < NUM_IN_CLUSTER // 2
    assert peak < 300
