"""Experts in MXFP4, as GPT-OSS publishes them, to BF16: once for a base, before anything reads its weights.

Blocks hold two values a byte, each of 4 bits, and 32 values share a power of two. Source: OCP Microscaling Formats 1.0,
sections 5.3 and 5.4; transformers 5.24, integrations/mxfp4.py.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from anadil.artifacts.base_model import COPIED_TOKENIZER_FILES, TINY_PATIENCE_S, made_once
from anadil.artifacts.lease import clear
from anadil.artifacts.text_part import read_settings
from anadil.artifacts.weight_files import StoredTensor, stored_tensors
from anadil.core.errors import IntegrityError, PreflightError
from anadil.core.format import MIB, human_bytes
from anadil.core.json_text import write_indented
from anadil.model.family_table import QUANTIZED, is_packed
from anadil.model.safetensors_files import DTYPES, TensorLayout, read_rows, write_weights
from anadil.runtime.cache_key import BASE_FILES, base_files

log = logging.getLogger(__name__)

BLOCKS, SCALES = "_blocks", "_scales"
"""Ends of the names of an expert stack's two tensors: (experts, rows, groups, 16) and (experts, rows, groups)."""
HALF = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = torch.tensor([*HALF, *(-each for each in HALF)], dtype=torch.bfloat16)
"""Numbers of 4 bits: a sign, two bits of exponent and one of mantissa."""
PAIRS = torch.stack([VALUES.repeat(16), VALUES.repeat_interleave(16)], 1).view(torch.int32).flatten()
"""Two values of each byte, lower bits first, in one number: a third of the time of two look-ups."""
POWERS = torch.tensor([*(2.0 ** (each - 127) for each in range(255)), torch.nan], dtype=torch.bfloat16)
COPIED_FILES = (*COPIED_TOKENIZER_FILES, "generation_config.json", "README.md")
SLOWEST_BYTES_S = 20 * MIB
"""Rate at which a process still waits for another that unpacks. A choice: a tenth of a network disk's."""


def unpacked_base(folder: Path, cache: Path, key: str = "base.model") -> Path:
    """Return the base's directory, or one in `cache` with its experts in BF16 where config.json calls these packed."""
    if not is_packed(read_settings(folder / "config.json")):
        return folder
    target = cache / f"bf16-{base_files(str(folder))[BASE_FILES][:16]}"
    num_bytes = sum(each.num_bytes for each in _layouts(folder).values())
    with made_once(target, max(TINY_PATIENCE_S, num_bytes / SLOWEST_BYTES_S)) as exists:
        if not exists:
            _unpack(folder, target, num_bytes, key)
    return target


def unpacked_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a directory as in `unpacked_base`. An unpacked one has no place in a file."""
    stored = stored_tensors(folder)
    if not is_packed(read_settings(folder / "config.json")):
        return stored
    tensors = {}
    for name, each in stored.items():
        stack = name.removesuffix(BLOCKS)
        if name.endswith(SCALES) and f"{name.removesuffix(SCALES)}{BLOCKS}" in stored:
            continue
        tensors[stack] = each if stack == name else _unpacked(stack, each, stored)
    return tensors


def refuse_packed(folder: Path) -> None:
    """Refuse to load weights that are still packed: transformers would make its own in their place."""
    if is_packed(read_settings(folder / "config.json")):
        raise PreflightError(
            f"{folder}: its weights are quantized (mxfp4), which is undone for base.model and merge.add alone, so name it there, "
            "or save it in BF16"
        )


def check_room(folder: Path, cache: Path) -> str:
    """Return a note on a base that will be unpacked, empty for any other. A disk without room is refused."""
    if not is_packed(read_settings(folder / "config.json")):
        return ""
    num_bytes = sum(each.num_bytes for each in _layouts(folder).values())
    if not (cache / f"bf16-{base_files(str(folder))[BASE_FILES][:16]}").is_dir():
        _require_room(cache, num_bytes, "base.model")
    return f"experts in MXFP4, unpacked once to {human_bytes(num_bytes)} of BF16 in {cache}"


def unpack(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return (experts, columns, rows) in BF16 out of blocks by row."""
    values = PAIRS.index_select(0, blocks.flatten().int()).view(torch.bfloat16).view(*scales.shape, -1)
    values *= POWERS[scales.int()][..., None]
    return values.flatten(2).transpose(1, 2)


def _unpacked(name: str, blocks: StoredTensor, stored: Mapping[str, StoredTensor]) -> StoredTensor:
    scales = stored.get(f"{name}{SCALES}")
    if scales is None:
        raise IntegrityError(f"{blocks.file.parent}: {name}{SCALES} is missing, fetch the model again")
    num, rows, groups, half = blocks.shape if len(blocks.shape) == 4 else (0, 0, 0, 0)
    has_scales = scales.shape == (num, rows, groups) and half == 16
    if not has_scales or {blocks.dtype, scales.dtype} != {"U8"}:
        raise IntegrityError(
            f"{blocks.file}: {name}{BLOCKS} is {blocks.dtype} {list(blocks.shape)} with scales {scales.dtype} "
            f"{list(scales.shape)}, not bytes of 16 to a block with a scale each, fetch the model again"
        )
    return replace(blocks, dtype="BF16", shape=(num, groups * half * 2, rows))


def _layouts(folder: Path) -> dict[str, TensorLayout]:
    return {
        name: TensorLayout(DTYPES[each.dtype], each.shape) for name, each in unpacked_tensors(folder).items()
    }


def _require_room(cache: Path, num_bytes: int, key: str) -> None:
    place = next(each for each in (cache, *cache.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(place).free
    if free < num_bytes:
        raise PreflightError(
            f"{key}: its experts are packed (MXFP4) and are trained in BF16, which takes {human_bytes(num_bytes)} in "
            f"{cache}, and {human_bytes(free)} are free there: free some, or set ANADIL_CACHE to a larger disk"
        )


def _unpack(folder: Path, target: Path, num_bytes: int, key: str) -> None:
    work = target.with_name(f".{target.name}")
    clear(work)  # of a process that was killed
    _require_room(target.parent, num_bytes, key)
    log.info(
        "%s: unpacking experts in MXFP4 to %s of BF16 in %s, once", folder, human_bytes(num_bytes), target
    )
    draft, stored = work / "draft", stored_tensors(folder)

    def values(name: str) -> Iterator[torch.Tensor]:
        blocks = stored.get(f"{name}{BLOCKS}")
        if blocks is None:
            yield read_rows(stored[name])
            return
        for expert in range(blocks.shape[0]):  # a stack of the largest model takes 4 GB
            yield unpack(read_rows(blocks, expert, 1), read_rows(stored[f"{name}{SCALES}"], expert, 1))

    try:
        write_weights(draft, _layouts(folder), values)
        settings = read_settings(folder / "config.json")
        plain = {name: value for name, value in settings.items() if name not in QUANTIZED}
        write_indented(draft / "config.json", plain, 2)
        for name in COPIED_FILES:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, draft / name)
        draft.rename(target)
    finally:
        clear(work)
