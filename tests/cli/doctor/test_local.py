import errno
import importlib.util
import json
import os
import socket
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.cli import main
from anadil.core.errors import PreflightError
from anadil.core.install import missing_packages, require_packages
from anadil.preflight import this_machine
from anadil.recipe.load import load_recipe
from anadil.runtime.cache_key import recipe_origin
from anadil.runtime.check import CheckResult
from tests.cli.doctor.lines import run_checks

TINY = "base.model=tiny"


def found(name: str, *overrides: str, work: Path) -> CheckResult:
    [check] = [check for check in run_checks("smoke", [TINY, *overrides], work) if check.name == name]
    return check


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_this_machine_can_run_the_built_in_recipe(tmp_path: Path) -> None:
    checks = run_checks("smoke", [], tmp_path)

    assert [check for check in checks if check.status == "failed"] == []
    assert {check.name for check in checks} >= {
        "python",
        "packages",
        "sources.az.inputs",
        "sources.en.inputs",
        "base.model",
        "storage",
    }


def test_the_command_prints_a_line_each_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main.main(["doctor", "smoke", "--work", str(tmp_path), "--set", "clean.inputs=[/none/*.txt]"])

    printed = capsys.readouterr().out
    assert code == 4
    assert "FAILED   clean.inputs: no file matches '/none/*.txt'\n" in printed
    assert "\n         -> correct the path or remove it from clean.inputs\n" in printed
    assert "ok       base.model: tiny, made on the spot" in printed
    assert "ok       kind of base: pretrained: tiny is trained on running text alone\n" in printed


def test_processes_that_can_share_no_locks_have_a_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr("multiprocessing.context.BaseContext.Lock", lock)

    check = found("/dev/shm", work=tmp_path)

    assert check.status == "passed", "small inputs need none"
    assert check.detail.startswith("processes can share no locks there (No such file or directory)")
    assert check.remedy.startswith("as root: mount -t tmpfs")


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main.main(["doctor", "-o", "json", "--work", str(tmp_path)])

    checks = json.loads(capsys.readouterr().out)
    assert code == 0
    assert all(set(check) == {"name", "status", "detail", "remedy"} for check in checks)


def test_a_wrong_recipe_fails_with_every_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    code = main.main(["doctor", "-o", "json", "--set", "seed=x", "--set", "language=xx"])

    recipe, *machine = json.loads(capsys.readouterr().out)
    assert (code, recipe["name"], recipe["status"]) == (4, "recipe", "failed")
    assert "2 mistakes" in recipe["detail"]
    assert [each["name"] for each in machine] == ["python", "packages", "device"]


def test_a_base_model_directory_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()

    check = found("base.model", f"base.model={tmp_path}", work=tmp_path)
    gone = found("base.model", f"base.model={tmp_path}/none", work=tmp_path)

    assert check.status == gone.status == "failed"
    assert f"{tmp_path} has no tokenizer.json and no *.safetensors" in check.detail
    assert f"{tmp_path}/none: no such directory" in gone.detail
    assert check.remedy == "give a Hugging Face model directory"
    assert gone.remedy

    (tmp_path / "model.safetensors").touch()
    slow_tokenizer = found("base.model", f"base.model={tmp_path}", work=tmp_path)
    assert slow_tokenizer.detail.endswith("no tokenizer.json")
    assert slow_tokenizer.remedy.startswith("transformers writes one: AutoTokenizer")


def test_an_adapter_to_begin_with_is_looked_for_before_anything_is_trained(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    artifact.seal(other, kind="adapter", origin={"recipe finetune.rank": "8"})
    fitting = tmp_path / "fitting"
    fitting.mkdir()
    artifact.seal(fitting, kind="adapter", origin=recipe_origin(load_recipe("smoke"), ("finetune",)))

    absent = found("finetune.start_from", f"finetune.start_from={tmp_path}/none", work=tmp_path)
    wrong = found("finetune.start_from", f"finetune.start_from={other}", work=tmp_path)
    right = found("finetune.start_from", f"finetune.start_from={fitting}", work=tmp_path)

    assert (absent.status, wrong.status, right.status) == ("failed", "failed", "passed")
    assert "no finished adapter there" in absent.detail
    assert "another form than the recipe's adapter: finetune.rank" in wrong.detail


def test_too_little_space_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "MIN_FREE_BYTES", 10**18)

    check = found("disk", work=tmp_path / "not" / "there" / "yet")

    assert check.status == "failed"
    assert check.remedy.endswith("or choose another --work")


def test_a_tracking_server_that_is_down_stops_nobody(tmp_path: Path, listening: int) -> None:
    up = found("tracking", f"tracking.uri=http://127.0.0.1:{listening}", work=tmp_path)
    down = found("tracking", "tracking.uri=http://127.0.0.1:9", work=tmp_path)
    off = found("tracking", "tracking.uri=off", work=tmp_path)

    assert up.status == "passed"
    assert down.status == "skipped"
    assert "does not answer" in down.detail
    assert (off.status, off.detail) == ("skipped", "off")


def test_a_password_in_the_environments_uri_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:hunter2@db/mlflow")

    assert found("tracking", work=tmp_path).detail == "postgresql://me:***@db/mlflow"


@pytest.mark.parametrize(("torch", "absent"), [("2.13.0", ["liger-kernel"]), ("2.13.0+cpu", [])])
def test_the_build_of_torch_for_cpus_needs_no_kernels_of_gpus(
    torch: str, absent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find, version = importlib.util.find_spec, metadata.version
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "liger_kernel" else find(name)
    )
    monkeypatch.setattr(metadata, "version", lambda name: torch if name == "torch" else version(name))

    assert missing_packages("laptop") == absent


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    assert missing_packages("report") == ["jinja2", "markupsafe"]
    assert "kfp" in missing_packages("laptop")
    with pytest.raises(
        PreflightError,
        match=r"not installed: jinja2, markupsafe; run .*pip install .*--editable .*\[report\]'",
    ):
        require_packages("report")
