"""What the layers of each model type hold, where they differ from a Llama's.

Read from transformers 5.23 (`modeling_*.py` and `configuration_*.py` of each type), compared with its models in
tests/plan/test_families.py. A type that is not here is not planned.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

HeadNorms = Literal["none", "head", "width"]
Rotation = Literal["shared", "fp32", "own"]
Bias = Literal["none", "inputs", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder layer: attention and a gated MLP, with norms around them."""

    norms_before: bool = True
    """Norms of what attention and the MLP read."""
    norms_after: bool = False
    """Norms of what attention and the MLP give, before it is added."""
    head_norms: HeadNorms = "none"
    """Norms of queries and keys: of each head, with one weight for all, or of the whole width."""
    norms_in_fp32: bool = False
    """Whether norms multiply with their weights before they go back to the precision of their input."""
    fused_gate: bool = False
    """Whether one matrix makes the gate and what it gates."""
    bias: Bias = "all"
    """Where `attention_bias` puts biases: nowhere, at queries, keys and values, or at the output too."""
    rotation: Rotation = "shared"
    """Cosines and sines: one pair for all layers, the same in FP32, or a pair that each layer makes of its own."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What config.json means where a key is missing."""

    @property
    def norms(self) -> int:
        """Norms of hidden states in a layer."""
        return 2 * self.norms_before + 2 * self.norms_after


LLAMA = Architecture()
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": LLAMA,
    "mistral": Architecture(bias="none", defaults={"num_key_value_heads": 8}),
    "qwen2": Architecture(bias="inputs", defaults={"num_key_value_heads": 32, "attention_bias": True}),
    "qwen3": Architecture(head_norms="head", defaults={"num_key_value_heads": 32, "head_dim": 128}),
    "olmo2": Architecture(
        norms_before=False, norms_after=True, head_norms="width", norms_in_fp32=True, rotation="fp32"
    ),
    "glm4": Architecture(
        norms_after=True,
        fused_gate=True,
        bias="inputs",
        rotation="own",
        defaults={
            "num_key_value_heads": 2,
            "head_dim": 128,
            "attention_bias": True,
            "partial_rotary_factor": 0.5,
        },
    ),
}
"""By `model_type` of config.json."""
