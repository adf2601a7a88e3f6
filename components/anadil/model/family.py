"""Record of a model family: one for each `model_type` of config.json, in `FAMILIES`.

Engine, planner, kernels, doctor and export ask these records, so that a family is one record. Nothing here imports
torch: the planner is instant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from anadil.model.layer_sizes import LayerKind, LayerSizes

LayoutName = Literal["shard", "context", "tensor", "pipeline"]
"""Keys of `pretrain.parallelism` that share a model."""
HeadNorms = Literal["none", "head", "width", "rotated"]
Rotation = Literal["shared", "fp32", "own", "own_fp32"]
Bias = Literal["none", "inputs", "all"]
NormKind = Literal["rms", "centred", "layer", "bare"]
MlpKind = Literal["gated", "gelu", "relu2", "xielu"]
TensorStyle = Literal["norm", "gather", "gather_keyword", "columns", "rows"]
"""Style in which tensor parallelism splits a module, see `pretrain/parallel/tensor.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder layer for the planner's formulas: attention and an MLP, with norms around them."""

    norms_before: bool = True
    """Norms of what attention and the MLP read."""
    norms_after: bool = False
    """Norms of what attention and the MLP give, before it is added."""
    parallel: bool = False
    """True if attention and the MLP read the same states."""
    shared_norm: bool = True
    """True if one norm serves both, where they do."""
    norm: NormKind = "rms"
    """RMSNorm; the same with the mean taken off first; torch's LayerNorm with weights and biases, or in FP32 without any."""
    inner_norms: bool = False
    """True if what the last matrices of attention and of the MLP read is normed."""
    head_norms: HeadNorms = "none"
    """Norms of queries and keys: of each head, with one weight for all, before it is rotated or after, or of the whole width."""
    norms_in_fp32: bool = False
    """True if norms multiply with their weights before they go back to the precision of their input."""
    fused_inputs: bool = False
    """True if one matrix makes queries, keys and values."""
    fused_gate: bool = False
    """True if one matrix makes the gate and what it gates."""
    mlp: MlpKind = "gated"
    """Three matrices, or two with an activation between them. xIELU has two weights of its own."""
    bias: Bias = "all"
    """Where `bias_key` puts biases: nowhere, at queries, keys and values, or at the output too."""
    bias_key: str = "attention_bias"
    has_bias: bool = False
    """True if attention has its biases whatever config.json says."""
    mlp_bias_key: str = ""
    """Key of config.json that puts biases into the MLP. Empty: it has none."""
    scores_in_fp32: bool = False
    """True if what experts give is multiplied with its scores in FP32, whatever the precision of its products."""
    expert_biases: bool = False
    """True if experts and their router have biases, and attention a sink for each head."""
    clamped_gate: bool = False
    """True if gate and what it gates are clamped, and what is gated has 1 added."""
    rotation: Rotation = "shared"
    """Cosines and sines: one pair for all layers, the same in FP32, or for each layer a pair that it makes of either."""
    values_normed: bool = False
    """True if values have a norm of each head without weights."""
    layer_sizes: Callable[[Mapping[str, Any], Callable[..., int]], tuple[LayerSizes, ...]] | None = None
    """Function of config.json that returns the sizes of each layer. None: all have the same."""
    layer_kinds: Callable[[Mapping[str, Any], Callable[..., int]], tuple[LayerKind, ...]] | None = None
    """Function of config.json that returns the kinds of layers. None: all are of one kind, which the fields above describe."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Values of config.json for keys that are missing."""
    only: Mapping[str, object] = field(default_factory=dict)
    """Keys of config.json -> the only value that is planned, also where the key is missing."""

    @property
    def norms(self) -> int:
        """Norms of hidden states in a layer."""
        return 2 * self.norms_before + 2 * self.norms_after - (self.parallel and self.shared_norm)

    @property
    def gated(self) -> bool:
        """True if an MLP or an expert has three matrices."""
        return self.mlp == "gated"

    @property
    def norm_size(self) -> int:
        """Numbers of a norm for each column."""
        return {"layer": 2, "bare": 0}.get(self.norm, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNames:
    """Where a transformers model keeps its parts."""

    embeddings: str = "model.embed_tokens"
    layers: str = "model.layers"
    norm: str = "model.norm"
    head: str = "lm_head"

    @property
    def tables(self) -> tuple[str, str]:
        """Parameters with one row for each token: input and output."""
        return f"{self.embeddings}.weight", f"{self.head}.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTables:
    """A second table with a row for each token, in which each layer has columns. No vocabulary may change its rows."""

    name: str
    """Name of the parameter."""
    rows: str
    """Key of config.json."""
    width: str
    """Key of config.json for the columns of a layer. 0 makes no table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitKeys:
    """Keys of config.json for what is done to the head's product."""

    times: str = ""
    over: str = ""
    """Divisor."""
    cap: str = ""
    """Logits become cap x tanh(logits / cap), where it has a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version4Keys:
    """Keys of transformers 4 in config.json, where they differ from one type to another."""

    is_known: bool = True
    """False for a type that version 4 lacks. Version 5 may not read that version's keys for it."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Version 5's key -> version 4's, outside of the rotation."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The same for the rotation."""
    layer_types: Mapping[str, str] = field(default_factory=dict)
    """Version 5's types of layers -> version 4's, which version 5 reads too."""
    scaling: frozenset[str] | None = None
    """All that version 4 takes beside the type, which it calls `type` there; None takes every key."""
    sliding_theta: str | None = None
    """Key for the base of the rotation in layers that see a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gguf:
    """A type in llama.cpp: its name there, and what that code takes for granted.

    Source: ggml-org/llama.cpp, src/models and conversion; `tests/release/test_gguf_cuts.py` compares logits.
    """

    architecture: str
    turns_neighbours: bool = False
    """True if rows 2i and 2i + 1 of a head turn together. transformers turns i and i + half."""
    norm_offset: float = 0.0
    """Added to the weights of norms, which transformers adds when it computes."""
    windows: Literal["none", "same_base", "own_base", "own_head"] = "none"
    """Layers with a window, and the base of their rotation. With `none`, a window is the longest context. With `own_head`,
    they have a width of heads too, and stand in any order."""
    own_head_size: bool = True
    """True if heads may be wider or narrower than the hidden size divided by them."""
    partial: bool = False
    """True if `partial_rotary_factor` is heeded. transformers rotates whole heads of other types, whatever it says."""
    groups: bool = True
    """True if several heads may share keys and values."""
    value_heads: tuple[str, ...] = ()
    """Parts of linear attention whose last rows, or columns of `ssm_out`, belong to heads of values."""
    kinds: frozenset[str] = frozenset()
    """Kinds of layers where there have to be some of each. Empty: any."""
    fault: Callable[[Any], str] = lambda _: ""
    """Reason why a config.json is not computed, or an empty text."""
    needs: tuple[str, ...] = ()
    """Keys of config.json that llama.cpp has values of its own for, where they have none."""
    scalings: frozenset[str] = frozenset(["default", "linear", "yarn"])
    """Scalings of the rotation."""
    fixed: Mapping[str, object] = field(default_factory=lambda: {"hidden_act": "silu"})
    """Keys of config.json -> the only value that is computed."""
    numbers: Mapping[str, str | float] = field(
        default_factory=lambda: {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
    )
    """Keys of GGUF, behind the architecture's name -> key of config.json or its rotation, or the number itself."""
    counts: Mapping[str, str | Callable[[Any], int | Sequence[int] | None]] = field(default_factory=dict)
    """The same for whole numbers, also by layer."""
    period: int | None = None
    """Period of layers whose last one sees all, where llama.cpp knows one alone."""
    queries: str = "attn_q_norm"
    """Weights that carry `query_pre_attn_scalar`."""
    widest: int = 0
    """Layers of the size whose queries llama.cpp divides by the root of hidden size / heads, not of a head's size."""


LLAMA_TENSOR_PLAN: Mapping[str, TensorStyle] = {
    "input_layernorm": "norm",
    "self_attn": "gather_keyword",  # transformers passes the hidden states by keyword
    "self_attn.q_proj": "columns",
    "self_attn.k_proj": "columns",
    "self_attn.v_proj": "columns",
    "self_attn.o_proj": "rows",
    "post_attention_layernorm": "norm",
    "mlp": "gather",
    "mlp.gate_proj": "columns",
    "mlp.up_proj": "columns",
    "mlp.down_proj": "rows",
}
LLAMA_GGUF = Gguf(
    architecture="llama", turns_neighbours=True, scalings=frozenset(["default", "linear", "llama3", "yarn"])
)
SHARD_LAYOUTS: frozenset[LayoutName] = frozenset(["shard", "context"])
TENSOR_LAYOUTS: frozenset[LayoutName] = SHARD_LAYOUTS | {"tensor"}
PIPELINE_LAYOUTS: frozenset[LayoutName] = SHARD_LAYOUTS | {"pipeline"}
ALL_LAYOUTS: frozenset[LayoutName] = TENSOR_LAYOUTS | PIPELINE_LAYOUTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One `model_type`, which trains in one process, or copies of it, as plain transformers trains it."""

    model_type: str
    layouts: frozenset[LayoutName] = SHARD_LAYOUTS
    """Layouts whose losses and gradients were compared with plain transformers (tests/pretrain/parallel/test_families.py).

    `shard` and `context` need embeddings, layers and head under `names`. `pipeline` needs a forward pass that does
    no more than its stages: embed, layers with one rotation, norm. `tensor` needs layers of `tensor_plan` alone."""
    names: ModuleNames = ModuleNames()
    tensor_plan: Mapping[str, TensorStyle] = field(default_factory=lambda: LLAMA_TENSOR_PLAN)
    """Modules of a layer -> how tensor parallelism splits them."""
    architecture: Architecture | None = None
    """None: its memory is not planned."""
    unplanned: str = ""
    """Reason, where one is known."""
    logits: LogitKeys = LogitKeys()
    recurrent: str = ""
    """Module of a layer that looks back by a convolution or a state, in place of attention; see `model/recurrence.py`."""
    experts: bool = False
    """True for a mixture of experts."""
    packing: str = ""
    """`quant_method` of published files, which `model/mxfp4.py` undoes. Empty: none."""
    layer_tables: LayerTables | None = None
    liger: str | None = None
    """Function of `liger_kernel.transformers` that puts in kernels which were tested with this engine."""
    version_4: Version4Keys = Version4Keys()
    gguf: Gguf | None = None
    """None: not exported as GGUF."""
    known: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Models of the hub -> keys of their config.json, to be planned without a network; `-Instruct` has the same."""
