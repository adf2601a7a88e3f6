"""Inputs of the stage that tests share."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kit.clean_stage import members, page, warc_record
from tests.kit.texts import ANOTHER, AZERBAIJANI, TURKISH


def sentences() -> list[str]:
    return [part.strip().rstrip(".") + "." for part in f"{AZERBAIJANI} {ANOTHER}".split(". ")]


def texts(count: int) -> list[str]:
    """Different texts of the same sound words, in sentences: without these they are words in any order."""
    words = [word.strip(".,") for word in f"{AZERBAIJANI} {ANOTHER}".split()]
    drawn = [random.Random(seed).sample(words, 70) for seed in range(count)]
    # Not `capitalize`, which makes two characters of İ.
    parts = [[" ".join(each[start : start + 10]) for start in range(0, 70, 10)] for each in drawn]
    return [" ".join(f"{part[0].upper()}{part[1:]}." for part in each) for each in parts]


def write_inputs(folder: Path) -> list[Path]:
    """Files of several kinds with duplicates across them and lines that cannot be read."""
    folder.mkdir(exist_ok=True)
    own = texts(40)
    for number, part in enumerate((own[:20], own[10:30])):
        rows = [json.dumps({"text": text, "url": f"https://a.az/{n}"}) for n, text in enumerate(part)]
        rows[7:7] = ["{", json.dumps({"text": ""}), json.dumps({"text": TURKISH, "source": "jurnal"})]
        (folder / f"{number}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    pages = [warc_record(page(text), url=f"https://b.az/{n}") for n, text in enumerate(own[25:])]
    (folder / "p.warc.gz").write_bytes(b"".join(members(pages)))
    table = pa.table({"text": [AZERBAIJANI, AZERBAIJANI.upper(), *own[35:]]})
    pq.write_table(table, folder / "t.parquet", row_group_size=2)
    return sorted(folder.iterdir())
