"""Bytes that tensors hold at a time, followed call by call; works on fake tensors."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Follows every storage from its first tensor to its end, and FSDP's resizing of it.

    What an operator allocates inside itself is not seen. torch's own trackers
    (`torch.distributed._tools`) refuse frozen parameters.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.bytes = 0
        self.peak = 0
        self._sizes: Any = WeakIdKeyDictionary()
        self._paused = False

    def add(self, tensor: torch.Tensor) -> None:
        """Follow the storage of a tensor, which may have been made before."""
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor  # noqa: SLF001  to_local would record a new view
        storage = tensor.untyped_storage()
        entry = self._sizes.get(storage)
        if entry is None:
            entry = self._sizes[storage] = [0]
            weakref.finalize(storage, self._set, entry, 0)
        self._set(entry, storage.nbytes())

    def _set(self, entry: list[int], size: int) -> None:
        self.bytes += size - entry[0]
        entry[0] = size
        self.peak = max(self.peak, self.bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and follow what it returns."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its inner operators come here one by one
        out = func(*args, **(kwargs or {}))
        if not self._paused:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.add(leaf)
        return out

    @contextmanager
    def following(self) -> Iterator["Allocated"]:
        """Follow what happens inside."""
        resize = torch.UntypedStorage.resize_
        shapes = ShardingPropagator._propagate_tensor_meta_non_cached  # noqa: SLF001  no public way

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            entry = self._sizes.get(storage)
            if entry is not None:
                self._set(entry, size)
            return result

        def shapes_only(*args: Any, **kwargs: Any) -> Any:
            # DTensor runs an operator on whole, made-up tensors to learn the shape of its result.
            before, self._paused = self._paused, True
            try:
                return shapes(*args, **kwargs)
            finally:
                self._paused = before

        with (
            mock.patch.object(torch.UntypedStorage, "resize_", resized),
            mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", shapes_only),
            self,
        ):
            yield self
