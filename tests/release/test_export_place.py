from pathlib import Path

import pytest

from anadil.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What looks like a model, for who is told no before it is read."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model/model.safetensors").write_bytes(b"")
    return tmp_path / "model"


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
