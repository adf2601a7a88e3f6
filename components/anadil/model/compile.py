"""Decoder layers by `torch.compile`: one program for all of them, compiled once for many batches.

Measured with torch 2.13 on a CPU: ten layers share one graph, whatever documents a batch packs. The
GPU path is the same calls; the project's tests run on CPUs.
"""

import logging
import os
import shutil
import sysconfig
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anadil.core.errors import PreflightError

log = logging.getLogger(__name__)

MOST_GRAPHS = 32
"""Variants of a layer's program: frozen or trained, with gradients or without, each length and number of
sequences. torch would continue uncompiled after eight, which it says in one log line only."""
COMPILERS = {"cpu": ("CXX", ("g++", "clang++")), "cuda": ("CC", ("gcc", "clang"))}
"""Variable and programs that are tried. Source: torch 2.13, `_inductor/config.py`, `cpp.cxx`; Triton 3.9,
`runtime/build.py`, which compiles the launcher of each kernel in C."""


def check_compiler(device: torch.device, key: str = "pretrain.compile", off: str = "false") -> None:
    """Refuse a machine on which the first step would fail for want of a compiler, with `off` as the key's value without."""
    variable, programs = COMPILERS[device.type]
    named = os.environ.get(variable)
    if not any(shutil.which(program) for program in ([named] if named else programs)):
        looked = f"{variable}={named}" if named else f"{variable} is not set, no {' or '.join(programs)}"
        raise PreflightError(
            f"{key} needs a compiler on this machine ({looked}); install one (Debian: apt-get install "
            f"{programs[0]}), or set {key} to {off}"
        )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        raise PreflightError(
            f"{key} needs Python's header files, and there is no {header}; install them (Debian: "
            f"apt-get install python3-dev), or set {key} to {off}"
        )


def compile_layers(layers: Sequence[nn.Module], *, backend: str = "inductor") -> None:
    """Let each layer's forward pass run compiled; parameter names, hooks and the module stay.

    Called after `checkpoint_layers` and the conversion to fewer bits, before `fully_shard`, whose hooks
    then run around the compiled call. Compiling begins with the first forward pass, in the main thread, between whose
    steps a signal is received as ever; torch's helper processes end with it.
    """
    # A layer that is compiled by its own `compile()` would run as it was under activation checkpointing, without a
    # word: torch keeps Dynamo out of `checkpoint`, unless a function that Dynamo is in already calls it, here `_call`.
    # No public setting; torch names it in the log line that tells of the limit.
    settings: Any = torch._dynamo.config  # noqa: SLF001
    # Never below what somebody else has set.
    settings.recompile_limit = max(settings.recompile_limit, MOST_GRAPHS)
    call = torch.compile(_call, backend=backend)
    for layer in layers:
        changed: Any = layer
        # A partial, not a closure, so that a deep copy calls its own layer.
        changed.forward = partial(_with_any_borders, call, layer.forward)
    log.info("%s layers are compiled at the first step, which takes minutes", len(layers))


def _call(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return forward(*args, **kwargs)


def _with_any_borders(
    call: Callable[..., Any], forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call with `borders` of changing length, at which a program would else be made again."""
    borders = kwargs.get("borders")
    if borders is not None:
        torch._dynamo.maybe_mark_dynamic(borders, 0)  # noqa: SLF001  documented under this name
    return call(forward, *args, **kwargs)
