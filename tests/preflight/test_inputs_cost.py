import json
import logging
from pathlib import Path

import pytest

from anadil.cli import main
from anadil.core.format import GIB
from anadil.preflight import base_model
from anadil.preflight import checks as table
from anadil.preflight.inputs import inspect_clean_cost
from anadil.recipe.load import load_recipe
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


def test_one_shard_and_one_process_are_counted_as_one(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("Salam")
    named = again(recipe, f"clean.inputs=[{tmp_path}/raw.txt]")

    detail = inspect_clean_cost(named, 8 * GIB, 1).detail

    assert "5 B of files in about 1 shard: " in detail
    assert "of memory for 1 process (it has" in detail


def test_processes_elsewhere_need_no_memory_here(recipe: Recipe, raw_text: Path) -> None:
    named = again(recipe, f"clean.inputs=[{raw_text}]", "clean.engine=job", "clean.workers=100")

    assert "2.0 GiB of memory for 0 processes" in inspect_clean_cost(named, 8 * GIB, 4).detail


def test_doctor_says_what_clean_may_need(
    recipe: Recipe, raw_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "ram_bytes", lambda: 2 * GIB)

    checks = table.report(
        table.PlannedRun(
            by=table.DOCTOR, recipe=load_recipe("smoke", [f"clean.inputs=[{raw_text}]"]), work=tmp_path
        )
    )

    [check] = [check for check in checks if check.name == "cost of clean"]
    assert check.status == "passed"
    assert "953.7 MiB of files in about" in check.detail
    assert "clean.workers lower" in check.remedy


def test_run_says_it_before_it_starts(
    raw_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "ram_bytes", lambda: 2 * GIB)
    monkeypatch.setattr(base_model, "check_base", lambda _: pytest.fail("it has to be told by then"))
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


def test_data_on_a_claim_is_said_to_be_unseen(recipe: Recipe) -> None:
    claimed = again(
        recipe, "cluster.volumes=[{claim: fsx, path: /claims/fsx}]", "clean.inputs=[/claims/fsx/raw]"
    )

    found = inspect_clean_cost(claimed, GIB, 1, here=False)

    assert (found.status, found.detail) == (
        "skipped",
        "/claims/fsx/raw (claim fsx) can be seen from pods alone",
    )
