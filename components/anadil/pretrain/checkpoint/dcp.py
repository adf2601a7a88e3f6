"""Tensors of a checkpoint: to its files and back, through torch.distributed.checkpoint (torch 2.13)."""

import errno
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
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
