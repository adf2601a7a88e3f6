"""Rotations of positions that depend on the longest piece of a batch, told before a run."""

from collections.abc import Mapping
from typing import Any

BY_LENGTH = ("dynamic", "longrope")
"""Values of `rope_type` whose angles change for a whole batch once one of its pieces is longer than the model was made for.

Source: transformers 5, `modeling_rope_utils.dynamic_rope_update`.
"""
ORIGINAL = "original_max_position_embeddings"


def rotation_hint(config: Mapping[str, Any], sequence_length: int) -> str:
    """Advice on a base whose rotation depends on its batch at this length; empty where it does not.

    Args:
        config: Content of its config.json, in the spelling of transformers 4 or 5.
        sequence_length: `pretrain.sequence_length`.
    """
    told = config.get("rope_parameters") or config.get("rope_scaling") or {}
    # Types of layers may have a rotation each.
    each = [one for one in (told, *told.values()) if isinstance(one, Mapping)]
    for rotation in each:
        kind = rotation.get("rope_type") or rotation.get("type")
        length = rotation.get(ORIGINAL) or config.get(ORIGINAL) or config.get("max_position_embeddings")
        if kind in BY_LENGTH and isinstance(length, int) and sequence_length > length:
            return (
                f"rope_type {kind} turns all pieces of a batch otherwise where one is longer than {length:,} tokens, so that "
                f"documents are not trained as they would be alone; set pretrain.sequence_length to {length} at most"
            )
    return ""
