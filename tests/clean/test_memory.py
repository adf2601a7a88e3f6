"""What dedup takes of memory where there are millions of documents."""

import time
from pathlib import Path

import pytest

from anadil.clean.extract.bomb import Excess, excess
from anadil.clean.extract.extract import main_text
from anadil.text.language import load_language
from tests.kit.child import peak_memory
from tests.kit.marks import matrix, slow
from tests.kit.texts import ANOTHER, AZERBAIJANI

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


@pytest.mark.matrix
def test_documents_in_one_cluster_take_as_much_memory_as_their_keys(tmp_path: Path) -> None:
    peak, printed = peak_memory(ONE_CLUSTER, tmp_path, NUM_IN_CLUSTER)

    num_alike, cluster_size = map(int, printed.split())
    assert cluster_size == NUM_IN_CLUSTER
    assert NUM_IN_CLUSTER // 2 - 1_000 < num_alike < NUM_IN_CLUSTER // 2
    assert peak < 300


az = load_language("az")
ARTICLE = f"<h1>Bakıda külək</h1><p>{AZERBAIJANI}</p><p>{ANOTHER}</p>"

BOMBS = {
    "depth": "<div>" * 20_000,
    "tags": "<b>x</b>" * 200_000,
    "comments": "<!---->" * 200_000,
    "attributes": "<div " + " ".join(f'a{n}="1"' for n in range(100_000)) + ">",
    "size": "<p>" + "a" * 2_500_000,
    "depth behind end tags of nothing": "<div></x>" * 20_000,
    "depth behind a comment that is over": "<!-->" + "<div>" * 20_000,
    "depth behind a script that is over": "<script>a</script >" + "<div>" * 20_000,
    "depth in a style sheet of a drawing": "<svg><style>" + "<g>" * 20_000,
    "depth behind a quote that opens nothing": "<p don't>" + "<div>" * 20_000,
    "styles that are opened again": "<p>"
    + "".join(f"<b id=x{n}>" for n in range(900))
    + "</p>"
    + "<p>x</p>" * 20_000,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_page_that_would_stall_the_parser_is_refused_quickly(bomb: str) -> None:
    started = time.process_time()

    assert excess(f"<html><body>{bomb}<p>{AZERBAIJANI}")
    assert time.process_time() - started < 6


@pytest.mark.parametrize(
    ("bomb", "told"),
    [
        ("depth", Excess("depth", 20_002, 3_000)),
        ("tags", Excess("tags", 100_001, 100_000)),
        ("attributes", Excess("attributes", 100_000, 1_000)),
        ("size", Excess("characters", 2_500_003, 2_000_000)),
        ("styles that are opened again", Excess("copies_of_style", 300_700, 300_000)),
    ],
)
def test_a_refused_page_tells_the_limit_that_it_exceeds(bomb: str, told: Excess) -> None:
    assert excess(BOMBS[bomb]) == told


def test_refusing_a_page_needs_little_memory(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(BOMBS["styles that are opened again"], encoding="utf-8")
    code = """
import sys
from pathlib import Path
from anadil.clean.extract.bomb import excess
print(excess(Path(sys.argv[1]).read_text()) is not None)
"""

    peak, printed = peak_memory(code, tmp_path / "a.html")

    assert printed == "True"
    assert peak < 150


LOOP = "for(var i=0;i<o.length;i++){s+='<div class=\"x\">'+(a<b?\"it's\":'<p>')}"
SCRIPT = f"<script>{LOOP * 1_500}</script>"
SLOPPY = {
    "paragraphs": "<p>" * 5_000,
    "image": f'<img src="data:image/png;base64,{"A" * 500_000}">',
    "path": f'<svg><path d="{"M 1 2 " * 50_000}"/></svg>',
    "colspan": "<td colspan=1000000 rowspan=1000000>x</td>",
    "entities": "&amp;" * 100_000,
    "unclosed": "<a" * 40_000,
    "script": SCRIPT,
    "script in upper case": SCRIPT.replace("script>", "SCRIPT>"),
    "script with an open quote": "<script>var a = 'it\\'s <b>' + \"" + "<div " * 3_000 + "</script>",
    "script full of less-than signs": "<script>" + "a<b;" * 150_000 + "</script>",
    "json": '<script type="application/json">{"a": "' + "<div><span>" * 3_000 + '"}</script>',
    "comment": "<!-- " + "<div>" * 3_000 + " -->",
    "apostrophe in a tag": "<p don't>" + "<span>it's</span>" * 5_000,
    "quote too much": '<a href="/x"">' + "<a href='/y'>x</a>" * 5_000,
    "quotes in a value": "<a onclick=\"f('<div>')\" title='\"'>x</a>" * 5_000,
    "unclosed spans": "<div><span>x" * 10 + "<span>" * 1_514 + "x",
    "spans left open in divs": "<div><span>x</div>" * 5_000,
    "marks without an end": "".join(f'<a id="x{n}"/><p>x</p><p>x</p>' for n in range(1_500)),
    "fonts left open": "<td><font color=red>x</td>" * 200,
    "a drawing with a style sheet": "<svg><style>a>b{}</style><g/></svg>" * 3_000,
}


@pytest.mark.parametrize("harmless", SLOPPY.values(), ids=SLOPPY)
def test_a_sloppy_page_is_no_bomb_and_is_extracted_quickly(harmless: str) -> None:
    whole = f"<html><body><div>{ARTICLE}</div>{harmless}</body></html>"
    started = time.process_time()

    refused = excess(whole)
    text = main_text(whole, az)

    assert not refused
    assert time.process_time() - started < 5
    assert AZERBAIJANI in text
