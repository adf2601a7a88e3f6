import pytest

from anadil.clean.readers import READERS
from anadil.preflight.clean_memory import BASE_BYTES, MEMORY_PER_TEXT_BYTE, TEXT_PER_BYTE, clean_memory_bytes


def test_every_kind_of_file_that_clean_reads_has_its_share_of_text() -> None:
    assert set(TEXT_PER_BYTE) == set(READERS)


def test_nothing_needs_what_the_program_itself_needs() -> None:
    assert clean_memory_bytes({}) == BASE_BYTES


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("s3://b/a.jsonl", 1.0), ("b.JSONL.GZ", 5.0), ("c.warc", 0.2), ("c.warc.gz", 3.0), ("unknown", 1.0)],
)
def test_the_memory_follows_the_text_in_the_files(name: str, ratio: float) -> None:
    grown = clean_memory_bytes({name: 10**9, "none.txt": 0}) - BASE_BYTES

    assert grown == int(10**9 * ratio * MEMORY_PER_TEXT_BYTE)
