"""config.json in the spellings of transformers 4 and of transformers 5, one beside the other.

transformers 5 writes `rope_parameters` and `dtype` alone. transformers 4 knows neither and says nothing: it takes
its defaults, so that the model turns its positions by other angles. llama.cpp and older vLLM read version 4's too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anadil.model.family import Version4Keys
from anadil.model.family_table import families

FULL, SLIDING = "full_attention", "sliding_attention"
"""Types of layers that may have a rotation each."""
BEFORE = "original_max_position_embeddings"
"""Key of the tokens that a model was made for before its rotation was scaled."""


def write_both_spellings(file: Path) -> None:
    """Add version 4's keys to a config.json that transformers 5 has written."""
    config = json.loads(file.read_text(encoding="utf-8"))
    config.update(version_4_keys(config))
    file.write_text(json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def version_4_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return version 4's keys for the precision and the rotation of a config.json of version 5."""
    # Some models turn layers that see a window otherwise than those that see all; version 4 scales the latter alone.
    keys = {"torch_dtype": config["dtype"]} if config.get("dtype") else {}
    rotation = config.get("rope_parameters") or {}
    family = families().get(str(config.get("model_type")))
    version_4 = family.version_4 if family else Version4Keys()
    if version_4.sliding_theta and isinstance(rotation.get(SLIDING), Mapping):
        keys[version_4.sliding_theta] = rotation[SLIDING]["rope_theta"]
    if isinstance(rotation.get(FULL), Mapping):
        rotation = rotation[FULL]
    # Models with learnt or no positions have no base of a rotation.
    if "rope_theta" not in rotation:
        return keys
    scaling = dict(rotation)
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in scaling:
            keys[version_4.names.get(key, key)] = scaling.pop(key)
    if version_4.scaling is not None:
        others = {key: value for key, value in scaling.items() if key in version_4.scaling}
        scaling = {"type": scaling["rope_type"], **others}
    elif scaling.get("rope_type") == "longrope" and BEFORE in scaling:  # version 4 looks for it outside alone
        keys[BEFORE] = scaling[BEFORE]
    keys["rope_scaling"] = scaling if rotation.get("rope_type", "default") != "default" else None
    return keys
