"""A PEFT adapter as it lies on disk."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from anadil.core.errors import IntegrityError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def refuse_other_rank(adapter: Path) -> None:
    """Refuse an adapter whose matrices have another rank than its configuration says.

    The configuration scales the update by `lora_alpha / r`, so that the wrong one gives another model without a word.

    Args:
        adapter: Its directory; one without an adapter, where all weights were trained, is left alone.

    Raises:
        IntegrityError: With both ranks and the matrix.
    """
    if not (adapter / CONFIG).is_file() or not (adapter / WEIGHTS).is_file():
        return
    settings = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
    if settings.get("rank_pattern"):
        return  # of an adapter that others made, with a rank for each layer
    try:
        with safe_open(adapter / WEIGHTS, framework="numpy") as tensors:
            names = [name for name in tensors.keys() if name.endswith("lora_A.weight")]  # noqa: SIM118  no mapping
            ranks = {name: tensors.get_slice(name).get_shape()[0] for name in names}
    except SafetensorError as error:
        raise IntegrityError(
            f"{adapter / WEIGHTS}: damaged ({error}); make or fetch the adapter again"
        ) from None
    for name, rank in ranks.items():
        if rank != settings["r"]:
            raise IntegrityError(
                f"{adapter / WEIGHTS}: {name} has rank {rank}, and {CONFIG} says {settings['r']}; "
                "make or fetch the adapter again"
            )
