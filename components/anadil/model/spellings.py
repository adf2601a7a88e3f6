"""config.json in the spellings of transformers 4 and of transformers 5, one beside the other.

transformers 5 writes `rope_parameters` and `dtype` alone. transformers 4 knows neither and says nothing: it takes
its defaults, so that the model turns its positions by other angles. llama.cpp and older vLLM read version 4's too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"
"""Types of layers that may have a rotation each."""
OTHER_NAMES = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}}
"""By model type, what version 4 calls a key that it calls by version 5's name elsewhere."""
PHI3_FACTORS = ("short_factor", "long_factor")
"""What Phi-3's scaling holds beside its type."""
BEFORE = "original_max_position_embeddings"
"""Key of the tokens that a model was made for before its rotation was stretched."""


def write_both_spellings(file: Path) -> None:
    """Add version 4's keys to a config.json that transformers 5 has written."""
    config = json.loads(file.read_text(encoding="utf-8"))
    config.update(spelling_of_4(config))
    file.write_text(json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def spelling_of_4(config: Mapping[str, Any]) -> dict[str, Any]:
    """Version 4's keys for the precision and the rotation of a config.json of version 5.

    Some models turn layers that see a window otherwise than those that see all; version 4 scales the latter alone.
    """
    keys = {"torch_dtype": config["dtype"]} if config.get("dtype") else {}
    rotation = config.get("rope_parameters") or {}
    if config.get("model_type") == "gemma3_text" and isinstance(rotation.get(SLIDING), Mapping):
        keys["rope_local_base_freq"] = rotation[SLIDING]["rope_theta"]
    if isinstance(rotation.get(FULL), Mapping):
        rotation = rotation[FULL]
    if "rope_theta" not in rotation:
        return keys
    scaling = dict(rotation)
    names = OTHER_NAMES.get(config.get("model_type", ""), {})
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in scaling:
            keys[names.get(key, key)] = scaling.pop(key)
    if config.get("model_type") == "phi3":  # version 4 refuses any other key
        scaling = {"type": scaling["rope_type"]} | {
            key: scaling[key] for key in scaling if key in PHI3_FACTORS
        }
    elif scaling.get("rope_type") == "longrope" and BEFORE in scaling:  # version 4 looks for it outside alone
        keys[BEFORE] = scaling[BEFORE]
    keys["rope_scaling"] = scaling if rotation.get("rope_type", "default") != "default" else None
    return keys
