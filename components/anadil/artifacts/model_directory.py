"""Checks of a model's directory before anything of it is loaded.

transformers acts on more than config, tokenizer and weights: where PEFT is installed it applies an adapter beside the
weights, it fetches kernels that config.json names, and it follows links. None of it is part of the model that the recipe
names, and it differs from machine to machine.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anadil.artifacts.weight_files import ALONE, INDEX
from anadil.core.errors import IntegrityError

ADAPTER_CONFIG = "adapter_config.json"
KERNEL_KEYS = frozenset(
    f"{prefix}{part}_implementation{suffix}"
    for part in ("attn", "experts")
    for prefix in ("", "_")
    for suffix in ("", "_internal")
)
"""Keys by which config.json chooses an implementation. Source: transformers 5.23, configuration_utils.py."""
KERNELS = frozenset(
    [None, "eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4"]
)
"""Values that name something of transformers itself; any other may be the address of code."""
WEIGHTS_KEY = "transformers_weights"
"""Names other weights than the usual ones."""


def check_directory(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a directory that would make another model than its config, tokenizer and weights describe."""
    if (folder / ADAPTER_CONFIG).is_file():
        raise IntegrityError(
            f"{folder}: holds {ADAPTER_CONFIG} beside config.json, so that machines with PEFT load another model than "
            "those without; merge the adapter into the weights (peft: merge_and_unload), or remove it"
        )
    path = folder / "config.json"
    for key, value in _settings(config):
        if key == "auto_map":
            raise IntegrityError(f"{path}: auto_map asks to run code; use a model without it")
        if key == WEIGHTS_KEY and value not in (ALONE, INDEX):
            raise IntegrityError(
                f"{path}: {key} is {value!r}, and only {ALONE} or the files of {INDEX} are read; remove the key, or use "
                "another model"
            )
        for name in (value.values() if isinstance(value, Mapping) else [value]) if key in KERNEL_KEYS else ():
            if not (name is None or isinstance(name, str)) or name not in KERNELS:
                raise IntegrityError(
                    f"{path}: {key} is {name!r}, which is not an implementation of transformers and would be fetched and "
                    "run; remove the key"
                )
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() and not _is_inside(entry.resolve(), folder.resolve()):
            raise IntegrityError(
                f"{entry}: is a link to {entry.resolve()}, outside of the model's directory; put the file itself there"
            )


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        yield key, value
        if isinstance(value, Mapping) and key != "auto_map":
            yield from _settings(value)


def _is_inside(target: Path, folder: Path) -> bool:
    """Return whether a file lies in the directory or in the hub's cache, whose snapshots are links to blobs."""
    blobs = target.parent
    return target.is_relative_to(folder) or (
        blobs.name == "blobs" and blobs.parent.name.startswith("models--")
    )
