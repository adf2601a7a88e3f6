import pytest

from anadil.clean.read.readers import READERS
from anadil.core.format import GIB, MIB
from anadil.preflight.clean_cost import TEXT_PER_BYTE, clean_cost, clean_memory_bytes
from anadil.recipe.sections import Clean


def test_every_kind_of_file_that_clean_reads_has_its_share_of_text() -> None:
    assert set(TEXT_PER_BYTE) == set(READERS)


def test_memory_follows_the_workers_and_not_the_input() -> None:
    small, large = (clean_cost({"a.jsonl": size}, Clean(workers=4), 64) for size in (10**6, 10**13))

    assert small.memory_bytes == large.memory_bytes == clean_memory_bytes(4) == 6 * GIB


def test_a_terabyte_of_packed_pages_is_told_with_its_shards_and_hours() -> None:
    cost = clean_cost({f"{number}.warc.gz": GIB for number in range(1_000)}, Clean(), 64)

    assert (cost.files, cost.shards, cost.workers) == (1_000, 4_000, 64)
    assert 197 * 1.07 < cost.cpu_hours < 240, "the benchmark's hours of a terabyte, for 1.07 of them"
    assert cost.hours == cost.cpu_hours / 64
    assert 2_000 * GIB < cost.disk_bytes < 3_000 * GIB


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("s3://b/a.jsonl", 1.0), ("b.JSONL.GZ", 5.0), ("c.warc", 0.2), ("c.warc.gz", 3.0), ("unknown", 1.0)],
)
def test_the_disk_follows_the_text_in_the_files(name: str, ratio: float) -> None:
    assert clean_cost({name: 10**9}, Clean(), 1).disk_bytes == int(0.8 * ratio * 10**9)


def test_shards_are_as_many_as_the_stage_plans() -> None:
    assert clean_cost({"a.jsonl": 40 * MIB}, Clean(workers=2), 1).shards == 8
    assert clean_cost({}, Clean(), 1).shards == 0
