"""Damaged, swapped and hostile checkpoints: noticed before anything is loaded."""

import json
import logging
import os
import pickle
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.distributed.checkpoint import metadata as of_torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.utils import collect_env

from anadil.artifacts import artifact
from anadil.core.errors import IntegrityError
from anadil.model.process_group import Group
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.dcp import read_metadata, write_tensors
from anadil.pretrain.checkpoint.folder import CheckpointFolder
from tests.kit import checkpoint_worker as worker
from tests.kit.checkpoint_samples import NAME, ORIGIN, Make, assert_newest, save, state_of, tensors_of
from tests.kit.ranks import in_ranks

TENSORS = "__0_0.distcp"


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


WRITTEN_BY_3_11_2 = Path(__file__).with_name("python-3.11.2.metadata")
"""By Debian 12's Python 3.11.2 with torch 2.13.0: `write_tensors(tensors_of(4), folder, None)`.

Python 3.11.7, 3.12.7 and 3.13.5 pickle the same metadata byte for byte alike.
"""
FILES = {"__0_0.distcp"}


class Member:
    """Pickles a member of an enum as Python 3.11.2 does."""

    def __init__(self, *path: Any) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, self.path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint's tensors, as this Python writes them."""
    write_tensors(tensors_of(4), tmp_path / "step-00000004", None)
    return tmp_path / "step-00000004"


def with_format(folder: Path, value: Any) -> None:
    """Put something in the place of a tensor's memory format."""

    class Properties(of_torch.TensorProperties):
        def __reduce__(self) -> tuple[Any, ...]:
            return of_torch.TensorProperties, (), (self.dtype, Layout(), False, value, False)

    class Layout:
        def __reduce__(self) -> tuple[Any, ...]:
            from torch.serialization import _get_layout

            return _get_layout, ("torch.strided",)

    content = pickle.loads((folder / ".metadata").read_bytes())
    for tensor in content.state_dict_metadata.values():
        tensor.properties = Properties(dtype=tensor.properties.dtype)
    (folder / ".metadata").write_bytes(pickle.dumps(content, protocol=4))


def test_metadata_that_python_3_11_2_wrote_says_the_same(folder: Path) -> None:
    expected = read_metadata(folder, FILES)
    shutil.copy(WRITTEN_BY_3_11_2, folder / ".metadata")

    assert b"getattr" in WRITTEN_BY_3_11_2.read_bytes()
    assert read_metadata(folder, FILES) == expected


@pytest.mark.parametrize("name", sorted(_MEM_FORMAT_ENCODING.__members__))
def test_every_member_of_the_enum_may_be_named(folder: Path, name: str) -> None:
    expected = read_metadata(folder, FILES)
    with_format(folder, Member(_MEM_FORMAT_ENCODING, name))

    assert b"getattr" in (folder / ".metadata").read_bytes()
    assert read_metadata(folder, FILES) == expected


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ((_MEM_FORMAT_ENCODING, "__class__"), "builtins.getattr(_MEM_FORMAT_ENCODING, '__class__')"),
        ((_MEM_FORMAT_ENCODING, "__init_subclass__"), "'__init_subclass__'"),
        ((_MEM_FORMAT_ENCODING, "mro"), "'mro'"),
        ((_MEM_FORMAT_ENCODING, "NO_MEMBER", "x"), "'NO_MEMBER'"),
        ((_MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST", "x"), "'TORCH_CHANNELS_LAST'"),
        ((_MEM_FORMAT_ENCODING, ["TORCH_CHANNELS_LAST"]), "TORCH_CHANNELS_LAST"),
        ((of_torch.Metadata, "__init__"), "getattr(Metadata, '__init__')"),
        ((of_torch.TensorProperties, "TORCH_CHANNELS_LAST"), "getattr(TensorProperties, "),
        (("text", "format"), "getattr(str, 'format')"),
        # The module builtins, and with it exec.
        ((getattr, "__self__"), "getattr(_Getattr, '__self__')"),
        ((Member(_MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST"), "fields"), "getattr(_Record, 'fields')"),
    ],
)
def test_getattr_reaches_nothing_else(folder: Path, path: tuple[Any, ...], words: str) -> None:
    with_format(folder, Member(*path))

    with pytest.raises(IntegrityError) as refused:
        read_metadata(folder, FILES)

    assert words in str(refused.value)
    assert "nothing was run" in str(refused.value)


def test_a_path_that_python_3_13_wrote_is_read(folder: Path) -> None:
    content = pickle.loads((folder / ".metadata").read_bytes())
    content.storage_meta = of_torch.StorageMeta(checkpoint_id=Path("/runs/step-4"))
    written = pickle.dumps(content, protocol=4)
    # 3.13 alone has this module; what else differs is the length before the name and the frame's.
    old, new = b"\x8c\x07pathlib\x94", b"\x8c\x0epathlib._local\x94"
    size = int.from_bytes(written[3:11], "little") + (len(new) - len(old)) * written.count(old)
    written = written[:3] + size.to_bytes(8, "little") + written[11:].replace(old, new)
    assert written.count(new) == 1
    (folder / ".metadata").write_bytes(written)

    assert read_metadata(folder, FILES).state_dict_metadata.keys() == tensors_of(4).keys()


def test_a_refusal_says_that_it_may_be_wrong_and_removes_nothing(folder: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(json.loads, protocol=4))

    with pytest.raises(IntegrityError) as refused:
        read_metadata(folder, FILES)

    said = str(refused.value)
    assert "asks to load json.loads, which no checkpoint of this program needs; nothing was run" in said
    assert "another Python or torch wrote it (here is Python 3." in said
    assert "report this message and keep the files" in said
    assert "remove" not in said
    assert (folder / ".metadata").exists()


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_is_read_by_one_by_four_and_unsharded(tmp_path: Path) -> None:
    for ranks, work in (
        (2, worker.save_sharded),
        (1, worker.load_sharded),
        (4, worker.load_sharded),
        (2, worker.load_replicated),
    ):
        in_ranks(worker.together, ranks, work, tmp_path)


@pytest.mark.slow
def test_faults_of_one_process_or_machine_are_agreed_on_by_all(tmp_path: Path) -> None:
    in_ranks(worker.together, 2, worker.own_disks, tmp_path)
    in_ranks(worker.together, 2, worker.disk_not_shared, tmp_path)
    in_ranks(worker.together, 2, worker.killed_writer, tmp_path, killed=1)


def replace_a_machine(rank: int, root: str) -> None:
    """Each process on a disk of its own; the second gets an empty one."""
    folder = Path(root, f"machine-{rank}")
    logging.basicConfig(level=logging.WARNING, filename=f"{root}/rank-{rank}.log")
    group = Group(rank=rank, local_rank=0, size=2, host=dist.new_group(backend="gloo"))
    before = CheckpointFolder(folder, group, ORIGIN, 2, per_process=True)
    save(before, 70, 80)
    before.close()
    if rank == 1:
        shutil.rmtree(folder)
    group.wait()
    after = CheckpointFolder(folder, group, ORIGIN, 2, per_process=True)

    found = after.newest()
    after.discard_later_checkpoints(-1)
    behind = {path.name for path in folder.glob("*")}
    save(after, 10, 20)
    kept = {path.name for path in folder.glob("*")}
    save(after, 80)

    later = {"step-00000070.later", "step-00000080.later"} if rank == 0 else set()
    assert found is None
    assert behind == later
    assert kept == {"step-00000010", "step-00000020"} | later
    assert {path.name for path in folder.glob("*")} == {"step-00000020", "step-00000080"}
    after.close()


@pytest.mark.slow
def test_a_machine_that_was_replaced_is_told_and_what_the_others_have_of_later_steps_is_set_aside(
    tmp_path: Path,
) -> None:
    in_ranks(replace_a_machine, 2, str(tmp_path))

    told = (tmp_path / "rank-0.log").read_text()
    assert "processes have checkpoints of different steps (rank 0 on " in told
    assert ": 80, 70; rank 1 on " in told
    assert ": none), and only a step that all of them have counts" in told
    assert "resumes from step 0; checkpoints of later steps (80, 70) are set aside as step-*.later" in told
    assert (tmp_path / "rank-1.log").read_text() == ""
