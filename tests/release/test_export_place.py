import fcntl
from pathlib import Path

import pytest

from anadil.cli import main
from anadil.core.errors import PreflightError
from anadil.release.export.export_model import draft_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What looks like a model, for who is told no before it is read."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model/model.safetensors").write_bytes(b"")
    return tmp_path / "model"


def test_the_lock_of_a_draft_that_has_just_got_its_name_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def late(descriptor: int, flags: int) -> None:
        (tmp_path / "out.partial").rename(tmp_path / "out")  # the other one ends between opening and locking
        (tmp_path / "out.partial").mkdir()  # and a third one begins
        real(descriptor, flags)

    monkeypatch.setattr(fcntl, "flock", late)

    with pytest.raises(PreflightError, match="another export is writing there"), draft_of(tmp_path / "out"):
        pass


@pytest.mark.parametrize(
    ("place", "code", "message"),
    [
        ("", 2, "argument --out: is empty; give a path"),
        ("/proc/x", 4, "choose another place"),
        ("/proc/x.gguf", 4, "choose another place"),
        ("x" * 300, 4, "File name too long"),
        ("/etc/passwd/x", 2, "/etc/passwd is a file, not a directory"),
    ],
    ids=["empty", "proc", "file in proc", "long", "below a file"],
)
def test_a_place_that_can_hold_nothing_is_told(
    place: str, code: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--format", "gguf"] if place.endswith(".gguf") else []

    try:
        found = main.main(["export", str(folder), "--out", place, *options])
    except SystemExit as ended:  # argparse's own
        found = int(str(ended.code))

    err = capsys.readouterr().err
    assert (found, "Traceback" in err) == (code, False), err
    assert message in err
