from pathlib import Path

import pytest

from anadil.artifacts import artifact, storage
from anadil.release import bring_model


def directory(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"w" * 1000)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "training.jsonl").write_text("{}\n")
    return folder


def test_a_model_is_brought_without_its_logs_and_a_changed_byte_is_found(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory(tmp_path / "adapter" / "merged")
    (tmp_path / "adapter" / "adapter.jsonl").write_text("{}")
    artifact.seal(tmp_path / "adapter", kind="adapter", origin={}, recipe={"language": "az"})
    storage.store(bucket).put_directory(tmp_path / "adapter", f"{bucket}/adapter")
    target = tmp_path / "mnt" / "models"

    for _ in range(2):  # the second time as after a restart of the pod
        assert bring_model.main([f"{bucket}/adapter/merged", str(target)]) == 0

    names = {path.name for path in target.iterdir()}
    assert names == {"config.json", "model.safetensors", "chat_template.jinja"}
    assert (target / "model.safetensors").read_bytes() == b"w" * 1000

    storage.store(bucket).write(f"{bucket}/adapter/merged/model.safetensors", b"x" * 1000)
    assert bring_model.main([f"{bucket}/adapter/merged", str(tmp_path / "other")]) == 5
    assert "model.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [("corpus", 3, "holds a corpus"), ("checkpoint", 3, "not a model"), ("", 3, "not a model")],
)
def test_other_artifacts_and_plain_directories_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, code: int, text: str
) -> None:
    model = directory(tmp_path / "model")
    if kind:
        artifact.seal(model, kind=kind, origin={})

    assert bring_model.main([str(model), str(tmp_path / "other")]) == code
    assert text in capsys.readouterr().err


def test_two_words_are_taken() -> None:
    assert bring_model.main(["only-one"]) == 2
