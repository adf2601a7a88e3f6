import math
from pathlib import Path

import numpy as np
import pytest

from anadil.core.errors import DataError
from anadil.evaluate.bits_per_byte import bits_by_group, domain_figures
from anadil.evaluate.heldout import read_retained
from anadil.text.corpus import Document


def text_of(source: str, url: str = "", text: str = "Salam") -> Document:
    return Document(id=source, text=text, source=source, url=url, lang="az")


DOCUMENTS = [
    text_of("/data/news.jsonl:1", "https://azertag.az/1", "Bu gün yağış yağdı."),
    text_of("/data/news.jsonl:2", "https://report.az/2"),
    text_of("/data/law.jsonl:1"),
    text_of("/data/law.jsonl:2"),
]
SIZES = np.array([len(each.text.encode()) for each in DOCUMENTS])
NATS = np.array([40.0, 10.0, 5.0, 7.0])


def test_bits_per_byte_are_told_by_domain_and_by_source() -> None:
    figures = domain_figures(DOCUMENTS, SIZES, NATS, seed=0)

    sizes = SIZES.tolist()
    assert figures["domains"] == pytest.approx(
        {
            "azertag.az": 40 / math.log(2) / sizes[0],
            "report.az": 10 / math.log(2) / sizes[1],
            "law": 12 / math.log(2) / (sizes[2] + sizes[3]),
        }
    )
    assert figures["sources"] == pytest.approx(
        {
            "news": 50 / math.log(2) / (sizes[0] + sizes[1]),
            "law": 12 / math.log(2) / (sizes[2] + sizes[3]),
        }
    )
    law = figures["domain_figures"]["law"]
    assert (law["num_documents"], law["num_bytes"], law["unsure"]) == (2, sizes[2] + sizes[3], True)
    assert law["interval"][0] <= figures["domains"]["law"] <= law["interval"][1]




def test_retained_text_is_told_by_the_language_that_its_rows_or_its_file_name(tmp_path: Path) -> None:
    (tmp_path / "news.jsonl").write_text(
        '{"text": "Привет", "lang": "ru"}\n{"text": "Да"}\n', encoding="utf-8"
    )
    (tmp_path / "tr.txt").write_text("Merhaba", encoding="utf-8")

    documents = read_retained(
        ["builtin:en/retained.jsonl", str(tmp_path / "news.jsonl"), str(tmp_path / "tr.txt")]
    )

    sizes = np.array([len(each.text.encode()) for each in documents])
    figures = bits_by_group(sizes, np.ones(len(documents)), [each.lang for each in documents])
    assert set(figures) == {"en", "ru", "news", "tr"}
    assert figures["tr"] == pytest.approx(1 / math.log(2) / len("Merhaba"))


def test_a_retained_file_without_text_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "ru.jsonl").write_text('{"text": ""}\n', encoding="utf-8")

    with pytest.raises(DataError, match=r"evaluate\.retained: .*ru\.jsonl holds no text; name another file"):
        read_retained([str(tmp_path / "ru.jsonl")])
