"""Blocks of objects of S3 that are kept on a machine: bounded, whoever reads them."""

import os
from pathlib import Path

import pytest

from anadil.artifacts import random_access
from anadil.artifacts.random_access import RemoteBytes

BLOCK = 1_000


class Fetching(RemoteBytes):
    """Blocks whose bytes are the number of the block; it counts what is fetched."""

    fetched = 0
    _version = "v-9000"

    def _fetched(self, start: int, num_bytes: int) -> bytes:
        self.fetched += 1
        return bytes([start // BLOCK]) * num_bytes


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fetching:
    """An object of nine blocks, four of which are kept."""
    monkeypatch.setattr(random_access, "MAX_BLOCKS_BYTES", 4 * BLOCK)
    monkeypatch.setattr(random_access, "SWEEP_BYTES", BLOCK)
    return Fetching("s3://b/shard", 9 * BLOCK, tmp_path / "blocks", 0, BLOCK)


def made_old(folder: Path) -> None:
    """Let all blocks have been used an hour ago."""
    for file in folder.iterdir():
        os.utime(file, (1e9, 1e9))


def test_the_least_recently_used_blocks_go_when_there_are_too_many(blocks: Fetching) -> None:
    for number in range(4):
        blocks.read(number * BLOCK, 5)
    made_old(blocks.folder)
    blocks.read(BLOCK, 5)

    for number in range(4, 7):
        blocks.read(number * BLOCK, 5)

    assert sum(file.stat().st_size for file in blocks.folder.iterdir()) == 4 * BLOCK
    before = blocks.fetched
    assert blocks.read(BLOCK, 5) == b"\1" * 5
    assert blocks.fetched == before, "the block that was used is still there"
    assert blocks.read(0, 5) == b"\0" * 5
    assert blocks.fetched == before + 1


def test_a_block_that_another_process_reads_can_go(blocks: Fetching) -> None:
    blocks.read(0, 5)
    [path] = blocks.folder.iterdir()

    with path.open("rb") as reader:
        made_old(blocks.folder)
        for number in range(1, 6):
            blocks.read(number * BLOCK, 5)

        assert not path.exists()
        assert reader.read() == b"\0" * BLOCK


def test_what_earlier_runs_have_left_goes_with_the_first_block(
    blocks: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_access, "SWEEP_BYTES", 10**9)
    blocks.folder.mkdir()
    for number in range(9):
        (blocks.folder / f"old-{number}").write_bytes(bytes(BLOCK))
    made_old(blocks.folder)

    blocks.read(0, 5)

    assert len(list(blocks.folder.iterdir())) == 4
