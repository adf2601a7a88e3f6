"""Damaged, swapped and hostile checkpoints: noticed before anything is loaded."""

import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import collect_env

from anadil.artifacts import artifact
from anadil.core.errors import IntegrityError
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.dcp import read_metadata
from tests.kit.checkpoint_samples import NAME, Make, assert_newest, maker, save, state_of

TENSORS = "__0_0.distcp"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes `CheckpointFolder` of one process in `tmp_path/checkpoints`, and closes them."""
    yield from maker(tmp_path / "checkpoints")


def forge(path: Path) -> None:
    """Make the manifest agree with the files, as an attacker who can write there would."""
    manifest = artifact.read_manifest(str(path))
    assert manifest is not None
    entries = {name: artifact.file_entry(path / name) for name in manifest.files}
    (path / "manifest.json").write_text(directory.sealed(replace(manifest, files=entries)))


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def test_single_flipped_bits_are_found(make: Make, tmp_path: Path) -> None:
    checkpoints, newest = make(), tmp_path / "checkpoints/step-00000004"
    save(checkpoints, 2, 4)
    files = sorted(newest.iterdir())
    sizes = [8 * file.stat().st_size for file in files]
    numbers = random.Random(0)

    for _ in range(50):
        file, size = numbers.choices(list(zip(files, sizes, strict=True)), weights=sizes)[0]
        bit = numbers.randrange(size)
        flip(file, bit)
        taken = checkpoints.newest()
        newest.with_suffix(".damaged").rename(newest)
        flip(file, bit)
        assert taken is not None
        assert taken.state.step == 2

    assert_newest(checkpoints, 4)


def be_another_step(path: Path) -> None:
    manifest = artifact.read_manifest(str(path))
    assert manifest is not None
    (path / "manifest.json").write_text(directory.sealed(replace(manifest, records={"step": 2})))


def change_the_manifest(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"tokens": 400', '"tokens": 500'))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: os.truncate(path / TENSORS, 1000), "__0_0.distcp: size differs from the manifest: "),
        (
            lambda path: (path / TENSORS).write_bytes(bytes((path / TENSORS).stat().st_size)),
            "__0_0.distcp: differs from its manifest",
        ),
        (lambda path: (path / TENSORS).unlink(), "__0_0.distcp: missing, but its manifest names it"),
        (lambda path: (path / ".metadata").unlink(), ".metadata: missing, but its manifest names it"),
        (lambda path: (path / "__1_0.distcp").write_bytes(b""), "__1_0.distcp: not in its manifest"),
        (
            lambda path: shutil.copy(path.with_name("step-00000002") / TENSORS, path),
            "__0_0.distcp: differs from its manifest",
        ),
        (
            lambda path: (path / "state.json").write_text(state_of(5).to_json()),
            "state.json: differs from its manifest",
        ),
        (lambda path: (path / "manifest.json").write_text("{"), "no manifest of this program"),
        (be_another_step, "its manifest is that of step 2"),
        (change_the_manifest, "manifest.json: is not as it was written"),
    ],
)
def test_a_damaged_generation_is_set_aside_and_the_one_before_taken(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], words: str
) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4)
    damage(tmp_path / "checkpoints/step-00000004")

    assert_newest(checkpoints, 2)

    assert words in caplog.text
    assert "damaged checkpoint set aside as" in caplog.text
    assert (tmp_path / "checkpoints/step-00000004.damaged").is_dir()


def test_a_generation_under_the_name_of_a_later_step_is_refused(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4)
    folder = tmp_path / "checkpoints"
    (folder / "step-00000002").rename(folder / "step-00000006")

    assert_newest(checkpoints, 4)


class Payload:
    """Touches a file when it is unpickled as pickle does it."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


class TorchPayload(Payload):
    """The same through a function of torch, whose names a checkpoint does hold."""

    def __reduce__(self) -> tuple[Any, ...]:
        return collect_env.run, (f"touch {self.canary}",)


class BuiltinPayload(Payload):
    """The same through a function of Python, which old protocols call `__builtin__`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self.canary)!r}, 'w')",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("payload", [Payload, BuiltinPayload])
@pytest.mark.parametrize("forged", [False, True])
def test_metadata_that_would_run_code_is_refused(
    make: Make, tmp_path: Path, payload: type[Payload], forged: bool, protocol: int
) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4)
    path, canary = tmp_path / "checkpoints/step-00000004", tmp_path / "canary"
    (path / ".metadata").write_bytes(pickle.dumps(payload(canary), protocol))
    if forged:
        forge(path)

    with pytest.raises(IntegrityError, match=r"\.metadata: asks to load") as refused:
        checkpoints.newest()

    assert refused.value.exit_code == 5
    assert not canary.exists()


def torch_payload(_: Any, canary: Path) -> Any:
    return TorchPayload(canary)


def payload_inside(content: Any, canary: Path) -> Any:
    content.planner_data = Payload(canary)
    return content


def point_outside(content: Any, _: Path) -> Any:
    for place in content.storage_data.values():
        place.relative_path = "../step-00000002/__0_0.distcp"
    return content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (torch_payload, r"asks to load torch\.utils\.collect_env\.run"),
        (payload_inside, r"asks to load posix\.system"),
        (point_outside, r"lies in '\.\./step-00000002/__0_0\.distcp'"),
    ],
)
def test_metadata_with_a_sealed_payload_or_a_place_outside_is_refused(
    make: Make, tmp_path: Path, change: Callable[[Any, Path], Any], words: str
) -> None:
    checkpoints = make()
    save(checkpoints, 4)
    path, canary = tmp_path / "checkpoints/step-00000004", tmp_path / "canary"
    content = pickle.loads((path / ".metadata").read_bytes())
    (path / ".metadata").write_bytes(pickle.dumps(change(content, canary)))
    forge(path)

    with pytest.raises(IntegrityError, match=words):
        checkpoints.newest()

    assert not canary.exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04.", b"(lp0\n.", pickle.dumps({"a": 1}), b"\x80\x04N."])
def test_metadata_of_another_kind_is_refused(make: Make, tmp_path: Path, content: bytes) -> None:
    save(make(), 4)
    path = tmp_path / "checkpoints/step-00000004"
    (path / ".metadata").write_bytes(content)

    with pytest.raises(IntegrityError, match="it is not checkpoint metadata"):
        read_metadata(path, {"__0_0.distcp"})


def test_pickled_tensors_are_read_as_weights_only(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 4)
    path, canary = tmp_path / "checkpoints/step-00000004", tmp_path / "canary"
    content = pickle.loads((path / ".metadata").read_bytes())
    file = path / "__0_0.distcp"
    before = file.stat().st_size
    with file.open("ab") as end:
        torch.save(Payload(canary), end)
    for place in content.storage_data.values():
        place.offset, place.length = before, file.stat().st_size - before
    (path / ".metadata").write_bytes(pickle.dumps(content))
    forge(path)
    found = checkpoints.newest()
    assert found is not None

    with pytest.raises(IntegrityError, match="cannot be read"):
        checkpoints.load(found, {NAME: torch.zeros(12, 4)})

    assert not canary.exists()
