"""Texts in WARC records, as in the WET files of Common Crawl."""

from pathlib import Path

import pytest

from anadil.clean.read import readers
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import bare_record, clean, documents, members, page, read_file, stats, warc_record
from tests.kit.texts import ENGLISH

TYPE = "text/plain"
TURKISH_CODE_PAGE = "şirin gün, köhne yol".encode("iso-8859-9")


def wet_record(text: str | bytes, number: int, said: int | None = None) -> bytes:
    """A record of a WET file; `said` instead of its length."""
    block = text.encode() if isinstance(text, str) else text
    record = bare_record(block, "conversion", TYPE, f"https://a.az/{number}")
    record = record.replace(b"Content-Type", b"WARC-Identified-Content-Language: aze\r\nContent-Type", 1)
    return record if said is None else record.replace(b"Length: %d" % len(block), b"Length: %d" % said)


@pytest.mark.parametrize("name", ["a.warc.wet.gz", "A.WARC.WET.GZ", "a.warc.gz", "a.warc.wet", "a.warc"])
def test_texts_of_a_wet_file_are_read_and_what_is_none_is_counted(tmp_path: Path, name: str) -> None:
    records = [
        bare_record(b"Software-Info: ia-web-commons", "warcinfo", "application/warc-fields"),
        wet_record("Birinci mətn.\nİkinci sətir.", 1),
        wet_record("", 2),
        wet_record(TURKISH_CODE_PAGE, 3),
        wet_record("Yalan uzunluq", 4, said=9_000),
        bare_record(b"{}", "metadata", "application/json"),
        bare_record(b"{}", "conversion", "application/json"),
        wet_record("Sonuncu mətn.", 5),
    ]
    path = tmp_path / name
    path.write_bytes(b"".join(members(records) if name.lower().endswith(".gz") else records))

    found, read_stats = read_file(path)

    assert [(raw.url, raw.text, raw.html) for raw in found] == [
        ("https://a.az/1", "Birinci mətn.\nİkinci sətir.", None),
        ("https://a.az/2", "", None),
        ("https://a.az/3", "şirin gün, köhne yol", None),
        ("https://a.az/5", "Sonuncu mətn.", None),
    ]
    assert read_stats.not_read == {"warcinfo": 1, "metadata": 1, "conversion": 1}
    assert (read_stats.bad, read_stats.recoded) == (1, 1)


def test_a_text_over_the_limit_is_bad_and_one_with_a_charset_is_read_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_RECORD_BYTES", 100)
    named = bare_record("yağış".encode("cp1254"), "conversion", "Text/Plain; charset=cp1254")
    (tmp_path / "a.warc.wet").write_bytes(wet_record("x" * 200, 1) + named)

    found, read_stats = read_file(tmp_path / "a.warc.wet")

    assert [raw.text for raw in found] == ["yağış"]
    assert "text is larger than 100 B" in read_stats.places[0]


def test_a_text_passes_all_that_other_text_passes(tmp_path: Path) -> None:
    own = texts(4)
    records = [wet_record(text, number) for number, text in enumerate([*own, own[0], ENGLISH * 3, ""])]
    (tmp_path / "CC-MAIN.warc.wet.gz").write_bytes(b"".join(members([*records, warc_record(page("x"))])))

    corpus = clean(tmp_path, tmp_path / "CC-MAIN.warc.wet.gz")

    assert {document.url for document in documents(corpus)} == {f"https://a.az/{n}" for n in range(4)}
    dropped = stats(corpus)["dropped"]
    assert sum(dropped.values()) == 4
    assert {"language", "duplicate"} <= set(dropped)
