"""`.metadata` of other Python versions: read where they pickle in another way, and nothing more than that."""

import builtins
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint import metadata as of_torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from anadil.core.errors import IntegrityError
from anadil.pretrain.checkpoint.dcp import read_metadata, write_tensors
from tests.kit.checkpoint_samples import tensors_of

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
        ((Member(_MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST"), "fields"), "getattr(_Record, 'fields')"),
    ],
)
def test_getattr_reaches_nothing_else(folder: Path, path: tuple[Any, ...], words: str) -> None:
    with_format(folder, Member(*path))

    with pytest.raises(IntegrityError) as refused:
        read_metadata(folder, FILES)

    assert words in str(refused.value)
    assert "nothing was run" in str(refused.value)


def test_getattr_of_a_module_or_of_itself_is_refused(folder: Path) -> None:
    # getattr(getattr, "__self__") is the module builtins, and with it exec.
    with_format(folder, Member(getattr, "__self__"))

    with pytest.raises(IntegrityError, match=r"getattr\(_Getattr, '__self__'\)"):
        read_metadata(folder, FILES)


@pytest.mark.parametrize("name", ["eval", "exec", "__import__", "setattr", "open"])
def test_other_functions_of_python_are_refused(folder: Path, name: str) -> None:
    class Call:
        def __reduce__(self) -> tuple[Any, ...]:
            return getattr(builtins, name), ("1",)

    with_format(folder, Call())

    with pytest.raises(IntegrityError, match=rf"asks to load (builtins|io|_io)\.{name}"):
        read_metadata(folder, FILES)


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
