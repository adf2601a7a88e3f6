"""Tensors of a checkpoint: to its files and back, through torch.distributed.checkpoint (torch 2.13)."""

import errno
import importlib.util
import pickle
import platform
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import (
    FileSystemReader,
    FileSystemWriter,
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
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from anadil.core.errors import IntegrityError, PreflightError, RetryableError
from anadil.pretrain.checkpoint.directory import hold_open
from anadil.pretrain.state import State

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCheckpoint:
    """A checkpoint whose every byte has been compared with its manifest."""

    path: Path
    state: State
    metadata: Metadata = field(repr=False)
    """Tensors of its files, with their places; at a phase's end without moments. Reading it runs no code."""


class Staging:
    """Copies of this process's tensors in main memory, page-locked where there is a GPU.

    The memory is reused for the next copy: page-locked memory is slow to allocate.
    """

    def __init__(self) -> None:
        on_gpu = torch.cuda.is_available()
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=on_gpu,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=on_gpu,
            )
        )

    def copy(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Copies that the next optimizer step does not change."""
        staged: Any = self._stager.stage({name: tensor.detach() for name, tensor in tensors.items()})
        return dict(staged)

    def close(self) -> None:
        """Free the memory."""
        self._stager.close()


class _Writer(FileSystemWriter):
    def storage_meta(self) -> None:
        """Write none: a path and a random id would make equal checkpoints differ."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except (OSError, RuntimeError) as error:
            # torch's archive writer hides a full disk behind an error of its own.
            raise _cause(error) from None


class _Reader(FileSystemReader):
    def __init__(self, path: Path, metadata: Metadata) -> None:
        super().__init__(path)
        self._metadata = metadata

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """Return the metadata that was read with care; the file itself is not opened again."""
        return self._metadata


def write_tensors(staged: Tensors, folder: Path, writers: "dist.ProcessGroup | None") -> None:
    """Write tensors into `<folder>/__<rank>_<n>.distcp`, each of them once, and `.metadata`.

    `writers` is None where this process holds all tensors whole.
    """
    # The directory is new, so nothing can be overwritten but by mistake.
    writer = _Writer(folder, overwrite=False)
    if writers is not None:
        save(dict(staged), storage_writer=writer, process_group=writers)
        return
    # The steps of dcp.save in a single process, without its warning that there are no others.
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(staged), None, is_coordinator=True)
    writer.set_up_storage_writer(is_coordinator=True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    writer.finish(metadata, [writer.write_data(plan, planner).wait()])


def read_tensors(
    checkpoint: VerifiedCheckpoint, tensors: Tensors, readers: "dist.ProcessGroup | None"
) -> None:
    """Fill this process's tensors in place, whatever layout they were written from; None reads alone."""
    _check(checkpoint, tensors)
    targets = {name: tensor.detach() for name, tensor in tensors.items()}
    reader = _Reader(checkpoint.path, checkpoint.metadata)
    with hold_open(checkpoint.path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            load(dict(targets), storage_reader=reader, process_group=readers, no_dist=readers is None)
        except CheckpointException as error:
            first = next(iter(error.failures.values()))[0]
            if isinstance(first, OSError):
                raise RetryableError(
                    f"{checkpoint.path}: cannot be read ({first}); run the same command again"
                ) from None
            raise IntegrityError(f"{checkpoint.path}: cannot be read ({first}); remove it") from None


def failure(error: BaseException, place: Path, step: int) -> PreflightError | RetryableError:
    """Turn a failure to save the checkpoint of `step` into an error with a remedy."""
    if isinstance(error, CheckpointException):
        # The first process hears of all failures. A full disk says more than what follows from it.
        failures = [_cause(failed[0]) for failed in error.failures.values()]
        error = next((one for one in failures if isinstance(one, OSError)), failures[0])
    left = f"the checkpoint of step {step:,} is not written and the one before it is kept"
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return PreflightError(
            f"{place}: disk full ({error}); {left}; free space or lower pretrain.keep_checkpoints"
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PreflightError(f"{place}: may not be written ({error}); {left}; grant access")
    if number in (errno.EMFILE, errno.ENFILE):
        return PreflightError(f"{place}: too many open files ({error}); {left}; raise `ulimit -n`")
    # gloo adds advice to what went wrong.
    words = " ".join(str(error).partition(" This is typically")[0].split())[:300] or type(error).__name__
    return RetryableError(f"{place}: cannot be written ({words}); {left}; run the same command again")


def _cause(error: BaseException) -> BaseException:
    """Return the first OSError that led to an error; the error itself where there is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause or error


def _check(checkpoint: VerifiedCheckpoint, tensors: Tensors) -> None:
    known: dict[str, Any] = checkpoint.metadata.state_dict_metadata
    missing = sorted(tensors.keys() - known.keys())
    if missing:
        raise IntegrityError(
            f"{checkpoint.path}: holds {len(known)} tensors, but not {missing[0]}"
            f"{f' and {len(missing) - 1} more' if missing[1:] else ''}; "
            "resume with the version and the phases that wrote it, or remove it"
        )
    for name, tensor in tensors.items():
        saved = known[name]
        if saved.size != tensor.shape or saved.properties.dtype != tensor.dtype:
            raise IntegrityError(
                f"{checkpoint.path}: {name} is {saved.properties.dtype} {list(saved.size)} there and "
                f"{tensor.dtype} {list(tensor.shape)} in the model; use the tokenizer and base that it was made with"
            )


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
