"""Writing of the finetuned model as a Hugging Face directory, tensor by tensor, never held as a whole.

A tensor is read, the adapter added to it in FP32, and rounded once, to the precision in which the base stores it:
adding in BF16 would round twice. Main memory holds one matrix in FP32.
"""

import math
from pathlib import Path

import torch
from safetensors import safe_open

from anadil.artifacts.weight_files import read_header
from anadil.core.errors import IntegrityError
from anadil.core.json_text import read_json
from anadil.model.architecture import read_config
from anadil.model.family import ModuleNames
from anadil.model.family_table import families
from anadil.model.load import save_settings
from anadil.model.safetensors_files import (
    DTYPES,
    SHARD_BYTES,
    SafetensorsFiles,
    TensorLayout,
    read_rows,
    write_weights,
)
from anadil.model.tensor_names import in_model

ADAPTER = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Before the names of modules in PEFT's files."""
ROWS = ".token_adapter.trainable_tokens_delta"


def write_merged(base: Path, adapter: Path, out: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Write the base model with a PEFT adapter added to its weights; tied weights stay tied.

    The adapter is LoRA, rank-stabilized or not, DoRA, or rows of embeddings that learned.
    """
    weights, added = SafetensorsFiles(base), _Adapter(adapter)
    _write(weights, weights, base, out, shard_bytes, added)
    if added.unused:
        raise IntegrityError(
            f"{adapter}: was made for another model: {base} has no matrix for {len(added.unused)} of its tensors, the "
            f"first {min(added.unused)}; give the model that it was trained on"
        )


def write_trained(trained: Path, base: Path, out: Path) -> None:
    """Write a model of which all weights learned, in the precision of the base that it was trained from."""
    _write(SafetensorsFiles(trained), SafetensorsFiles(base), base, out, SHARD_BYTES, None)


class _Adapter:
    def __init__(self, folder: Path) -> None:
        settings = read_json(folder / "adapter_config.json")
        rank = int(settings["r"])
        self.file = folder / ADAPTER
        self.scaling = settings["lora_alpha"] / (math.sqrt(rank) if settings["use_rslora"] else rank)
        self.rows: dict[str, list[int]] = settings["trainable_token_indices"] or {}
        self.unused = set(read_header(self.file))

    def added(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the base, by its name in the model, with the adapter added where it has a part of it.

        Source: peft 0.21, tuners/lora/layer.py and variants.py (`merge_safe`), tuners/trainable_tokens/layer.py.
        """
        module = name.removesuffix(".weight")
        of_module = f"{PREFIX}{module}"
        if f"{of_module}{ROWS}" in self.unused:
            indices = torch.tensor(self.rows[module.rpartition(".")[2]])
            return weight.float().index_copy(0, indices, self._take(f"{of_module}{ROWS}").float())
        if f"{of_module}.lora_A.weight" not in self.unused:
            return weight
        first, second = (self._take(f"{of_module}.lora_{matrix}.weight").float() for matrix in "AB")
        merged: torch.Tensor = weight.float() + second @ first * self.scaling
        magnitude = f"{of_module}.lora_magnitude_vector"
        if magnitude in self.unused:
            merged *= (self._take(magnitude).float() / torch.linalg.norm(merged, dim=1)).view(-1, 1)
        return merged

    def _take(self, name: str) -> torch.Tensor:
        self.unused.discard(name)
        with safe_open(self.file, framework="pt", device="cpu") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor


def _write(
    weights: SafetensorsFiles, stored: SafetensorsFiles, base: Path, out: Path, shard_bytes: int,
    adapter: _Adapter | None,
) -> None:  # fmt: skip
    config = read_config(base)
    kind, family = config.model_type, families().get(config.model_type)
    names = family.names if family else ModuleNames()
    # A tied head is the embedding; storing it would untie the two.
    left_out = names.tables[1] if config.tie_word_embeddings else ""
    layout = {
        name: TensorLayout(
            DTYPES[stored.dtype(name) if name in stored else weights.dtype(name)], weights.shape(name)
        )
        for name in weights
        if in_model(name, kind) != left_out
    }

    def merged(name: str) -> list[torch.Tensor]:
        tensor = read_rows(weights.stored[name])
        return [adapter.added(in_model(name, kind), tensor) if adapter else tensor]

    write_weights(out, layout, merged, shard_bytes)
    save_settings(base, out)
