"""How the tensors of a model are spread over safetensors files, as Hugging Face directories have them."""

import json
from collections.abc import Mapping
from pathlib import Path

INDEX = "model.safetensors.index.json"


def files_of(sizes: Mapping[str, int], max_bytes: int) -> dict[str, list[str]]:
    """Name of each file -> names of its tensors, in order.

    Args:
        sizes: Bytes of each tensor as it will be stored, by name.
        max_bytes: Most bytes of a file; a larger tensor has one of its own.
    """
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    return {
        f"model-{number:05}-of-{len(shards):05}.safetensors": names for number, names in enumerate(shards, 1)
    }


def write_weight_index(out: Path, places: Mapping[str, str], total_bytes: int) -> None:
    """Write which file holds which tensor; a model of one file needs none."""
    if len(set(places.values())) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": places}
        (out / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
