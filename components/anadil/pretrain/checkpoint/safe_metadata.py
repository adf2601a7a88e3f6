"""A reader of the `.metadata` of torch.distributed.checkpoint that runs no code.

The file is a pickle. `dcp.load` unpickles it as it is, so that whoever can write it can run code
(pytorch/pytorch#189308). This reader knows only the names that torch 2.13 writes. Each stands for a
plain record, whose fields are checked before torch's own objects are made of them.
"""

import importlib.util
import pickle
import platform
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch.distributed.checkpoint.filesystem import (
    _StorageInfo,  # the type that torch's reader expects
)
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,  # a field of every tensor, which no public name gives
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from anadil.core.errors import IntegrityError

METADATA = ".metadata"

ALLOWED = frozenset(
    {
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
                "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
            )
        ),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"), ("pathlib._local", "PosixPath"),
    }
)  # fmt: skip
"""Module and name of what torch pickles, beside `torch.Size`, the dtypes and `GETATTR`.

Source: torch 2.13, `FileSystemWriter.finish`; a path, which Python 3.13 gives another module, is in
the files of other programs.
"""
GETATTR = ("builtins", "getattr")
"""Python 3.11.0 to 3.11.3 pickle an enum's member as `getattr(enum, name)`, others as `enum(value)`.

Source: CPython, `Enum.__reduce_ex__` of Lib/enum.py.
"""
DAMAGE = (
    pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError, KeyError, MemoryError,
    OverflowError, RecursionError, TypeError, UnicodeDecodeError, ValueError,
)  # fmt: skip
"""Errors of a pickle of wrong bytes. Source: documentation of `pickle.UnpicklingError`."""

T = TypeVar("T")


class ForeignNameError(pickle.UnpicklingError):
    """The pickle names something that metadata has no use for."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(f"{module}.{name}")
        self.module = module


class _Record:
    """Stand-in for an object of the pickle that holds its fields and can do nothing."""

    def __init__(self, *_: Any) -> None:
        self.fields: Any = {}

    def __setstate__(self, fields: Any) -> None:
        self.fields = fields


class _Getattr(_Record):
    """Stand-in for `getattr` that gives the members of torch's enum and nothing else."""

    def __call__(self, owner: Any, name: Any, *more: Any) -> _Record:
        is_enum = (
            isinstance(owner, type)
            and issubclass(owner, _Record)
            and owner.__name__ == _MEM_FORMAT_ENCODING.__name__
        )
        if is_enum and isinstance(name, str) and name in _MEM_FORMAT_ENCODING.__members__ and not more:
            return _Record()
        where = owner.__name__ if isinstance(owner, type) else type(owner).__name__
        raise ForeignNameError(GETATTR[0], f"getattr({where}, {str(name)[:60]!r})")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # New objects each time: a pickle may set attributes on them.
        if (module, name) == GETATTR:
            return _Getattr()
        if (module, name) in ALLOWED:
            return type(name, (_Record,), {})
        if (module, name) == ("torch", "Size"):
            return torch.Size
        dtype = getattr(torch, name, None) if module == "torch" and name.isidentifier() else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise ForeignNameError(module, name)

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError(f"persistent id {pid!r}")


def read_metadata(path: Path, files: Collection[str]) -> Metadata:
    """Read the `.metadata` of a verified checkpoint, whose tensors may lie in `files` alone."""
    file = path / METADATA
    try:
        return _rebuilt(_unpickled(file), files)
    except ForeignNameError as error:
        raise _hostile(file, error) from None
    except (OSError, *DAMAGE) as error:
        raise IntegrityError(
            f"{file}: its manifest vouches for it, but it is not checkpoint metadata ({error}); remove {path}"
        ) from None


def refuse_hostile(path: Path) -> None:
    """Tell an attack from damage, in a `.metadata` that differs from its manifest.

    A flipped bit can change a name too, but not into that of another installed library.
    """
    file = path / METADATA
    try:
        _unpickled(file)
    except ForeignNameError as error:
        module = error.module.partition(".")[0]
        # Old protocols call builtins so; `__main__` has no spec.
        exists = module in {"__builtin__", "__main__"} or (
            module != "torch" and module.isidentifier() and importlib.util.find_spec(module) is not None
        )
        if exists:
            raise _hostile(file, error) from None
    except (OSError, *DAMAGE):
        return


def _unpickled(file: Path) -> Any:
    with file.open("rb") as stream:
        return _Unpickler(stream).load()


def _hostile(file: Path, error: ForeignNameError) -> IntegrityError:
    return IntegrityError(
        f"{file}: asks to load {error}, which no checkpoint of this program needs; nothing was run. Either "
        f"somebody has changed it to run code: find out who can write there. Or another Python or torch wrote it "
        f"(here is Python {platform.python_version()} with torch {torch.__version__}): report this message and keep "
        f"the files. To resume from an older checkpoint meanwhile, move {file.parent} to another place"
    )


def _rebuilt(value: Any, files: Collection[str]) -> Metadata:
    """Make torch's own objects of records whose every field is checked."""
    fields = _fields(value, "Metadata")
    tensors: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
        _is(name, str): _tensor(entry) for name, entry in _is(fields["state_dict_metadata"], dict).items()
    }
    places = {}
    for key, storage in _is(fields["storage_data"], dict).items():
        index, place = _fields(key, "MetadataIndex"), _fields(storage, "_StorageInfo")
        name, offset, hint = _is(index["fqn"], str), index["offset"], index["index"]
        if place["relative_path"] not in files or place.get("transform_descriptors"):
            raise ValueError(f"tensor {name!r} lies in {place['relative_path']!r}")
        at = MetadataIndex(
            name, None if offset is None else _size(offset), None if hint is None else _is(hint, int)
        )
        places[at] = _StorageInfo(
            _is(place["relative_path"], str), _is(place["offset"], int), _is(place["length"], int)
        )
    return Metadata(state_dict_metadata=tensors, storage_data=places)


def _tensor(entry: Any) -> TensorStorageMetadata:
    fields = _fields(entry, "TensorStorageMetadata")
    properties = _is(fields["properties"], _Record).fields
    chunks = [
        ChunkStorageMetadata(offsets=_size(chunk["offsets"]), sizes=_size(chunk["sizes"]))
        for chunk in (_fields(item, "ChunkStorageMetadata") for item in _is(fields["chunks"], list))
    ]
    dtype = _is(_is(properties, tuple)[0], torch.dtype)
    return TensorStorageMetadata(TensorProperties(dtype=dtype), _size(fields["size"]), chunks)


def _fields(value: Any, name: str) -> dict[Any, Any]:
    if type(value).__name__ != name:
        raise TypeError(f"{type(value).__name__} where {name} belongs")
    return _is(_is(value, _Record).fields, dict)


def _size(value: Any) -> torch.Size:
    return torch.Size([_is(length, int) for length in _is(value, torch.Size)])


def _is(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where a {kind.__name__} belongs")
    return value
