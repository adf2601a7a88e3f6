import json
import logging
from pathlib import Path

import pytest

from anadil.clean.read.readers import READERS
from anadil.cli import main
from anadil.core.format import GIB, MIB
from anadil.preflight import checks as table
from anadil.preflight.inputs import inspect_clean_cost
from anadil.preflight.text_size import TEXT_PER_BYTE, clean_cost
from anadil.recipe.clean import Clean
from anadil.recipe.sections import Recipe
from tests.kit.harness import again

LARGE = 10**9


@pytest.fixture
def raw_text(tmp_path: Path) -> Path:
    """A file of 1 GB that takes no space."""
    file = tmp_path / "raw.jsonl"
    with file.open("wb") as stream:
        stream.write(b'{"text": "Salam"}\n')
        stream.truncate(LARGE)
    return file


def test_what_files_cost_is_told(recipe: Recipe, raw_text: Path) -> None:
    named = again(recipe, f"clean.inputs=[{raw_text}]")

    enough, short = inspect_clean_cost(named, 8 * GIB, 4), inspect_clean_cost(named, 3 * GIB, 4)

    assert enough.detail == (
        "953.7 MiB of files in about 16 shards: 6.0 GiB of memory for 4 processes (it has 8.0 GiB), up to 762.9 MiB of "
        "disk and 3 min 20 s of CPU time"
    )
    assert enough.remedy == ""
    assert "processes may be killed: set clean.workers lower" in short.remedy


def test_processes_elsewhere_need_no_memory_here(recipe: Recipe, raw_text: Path) -> None:
    named = again(recipe, f"clean.inputs=[{raw_text}]", "clean.engine=job", "clean.workers=100")

    assert "2.0 GiB of memory for 0 processes" in inspect_clean_cost(named, 8 * GIB, 4).detail


def test_run_says_it_before_it_starts(
    raw_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "ram_bytes", lambda: 2 * GIB)
    monkeypatch.setattr(
        "anadil.artifacts.base_model.check_base", lambda _: pytest.fail("it has to be told by then")
    )
    settings = ["--set", f"clean.inputs=[{raw_text}]", "--set", "base.model=/none", "--until", "tokenizer"]

    with pytest.raises(BaseException, match="told by then"):
        main.main(["run", "smoke", "--work", str(tmp_path), *settings])

    assert "cost of clean: 953.7 MiB of files in about" in capsys.readouterr().err


def test_submit_says_it_and_compares_it_with_what_the_step_asks_for(
    recipe: Recipe, raw_text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from anadil_pipelines.submit import SubmitOptions, prepare

    caplog.set_level(logging.INFO)
    volumes = json.dumps([{"claim": "all", "path": str(tmp_path)}])
    settings = [f"clean.inputs=[{raw_text}]", f"cluster.volumes={volumes}"]
    asked = "cluster.resources={clean: {memory: 2Gi}}"

    prepare(again(recipe, *settings), SubmitOptions(name="first"), dry=True)
    fitting = [line for line in caplog.messages if line.startswith("cost of clean: ")]
    caplog.clear()
    prepare(again(recipe, *settings, asked), SubmitOptions(name="first"), dry=True)
    [short] = [line for line in caplog.messages if line.startswith("cost of clean: ")]

    assert "3.0 GiB of memory for 1 process (it has 3.0 GiB)" in fitting[0]
    assert short.endswith("(on a cluster cluster.resources.clean.memory)")


def test_every_kind_of_file_that_clean_reads_has_its_share_of_text() -> None:
    assert set(TEXT_PER_BYTE) == set(READERS)


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
