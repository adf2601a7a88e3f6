"""The sizes of a decoder of a known type, and what follows from them alone: parameters and FLOPs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from anadil.artifacts.base_model import TINY, TINY_SHAPE, TINY_VOCABULARY, from_hub, is_local, model_config
from anadil.artifacts.weight_files import has_weights, holds_own_head, stored_tensors
from anadil.core.errors import DataError, PreflightError
from anadil.estimate import layer_memory
from anadil.model.family import Architecture
from anadil.model.family_table import EXPERT_COUNTS, check_family, families, logit_scale_and_cap
from anadil.model.layer_sizes import LayerKind, LayerSizes
from anadil.recipe.sections import Recipe

Trains = Literal["new_rows", "embeddings", "all"]
LLAMA = Architecture()

KNOWN: Mapping[str, Mapping[str, object]] = {
    name: config for family in families().values() for name, config in family.known.items()
}
"""Keys of config.json for models that are planned without a network; `-Instruct` has the same."""


class NotPlannedError(PreflightError):
    """A model type that can be trained, though nobody has compared what the planner says of its memory."""

    def __init__(self, message: str, model_type: str) -> None:
        super().__init__(message)
        self.model_type = model_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a decoder; all counts are of numbers, not of bytes."""

    name: str
    hidden: int
    intermediate: float
    layers: int
    heads: int
    kv_heads: float
    head_dim: float
    vocabulary: int
    tied: bool
    """True if input and output embeddings are one table."""
    model_type: str = "llama"
    """As in config.json; one without an `Architecture` counts as a Llama."""
    attention_bias: bool = False
    """True if products of attention add the biases that `Architecture.bias` names."""
    mlp_bias: bool = False
    """True if the products of the MLP add biases."""
    rotary_share: float = 1.0
    """Share of a head that is rotated."""
    scales_logits: bool = False
    """True if the head's product is multiplied with a number of config.json."""
    caps_scores: bool = False
    """True if the scores of attention are capped."""
    experts: int = 0
    """Experts of a layer, 0 in a dense model. `intermediate` is the width of a token's experts together."""
    chosen: int = 0
    """Experts that a token meets, beside a shared one."""
    shared: int = 0
    """Width of the expert that every token meets."""
    values_made: float = 1
    """Share of keys whose values have a matrix of their own."""
    keys_normed: float = 1
    """Widths of heads in layers that make keys, over widths of heads in all layers."""
    shared_keys: int = 0
    """Widths of keys and values that stay until the step ends, as other layers may read them."""
    layer_inputs: int = 0
    """Columns of each layer in a second table of embeddings; 0 without one."""
    layer_rows: int = 0
    """Rows of that table."""
    kinds: tuple[LayerKind, ...] = ()
    """Kinds of layers, where some look back by a convolution or a state. Sizes are means of them."""
    attends: float = 1
    """Width of queries that attend, over `query_width`."""
    widest: "Shape | None" = None
    """The layer with the widest heads and MLP, where layers differ: all other sizes are means of layers."""

    @property
    def architecture(self) -> Architecture:
        """Parts of a layer that differ from a Llama's."""
        return _architecture(self.model_type)

    @property
    def expert_width(self) -> int:
        """Width of one expert."""
        return int(self.intermediate - self.shared) // max(1, self.chosen)

    @property
    def linear_width(self) -> float:
        """Width of the MLP's matrices that are modules of their own: experts are parts of stacks."""
        return self.shared if self.experts else self.intermediate

    @property
    def stack(self) -> int:
        """Numbers of one matrix of all experts of a layer, of which each has three."""
        return self.experts * self.hidden * self.expert_width

    @property
    def idle(self) -> int:
        """Numbers of one layer that a token is not multiplied with: other experts, and the small matrices that choose."""
        others = self.experts - self.chosen
        return self.hidden * (self.experts + 3 * others * self.expert_width + (self.shared > 0))

    @property
    def query_width(self) -> float:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> float:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def embedding(self) -> int:
        """Numbers of one table of embeddings."""
        return self.vocabulary * self.hidden

    @property
    def embeddings(self) -> int:
        """Numbers of all tables: one where input and output are tied, else two."""
        return self.embedding * (1 if self.tied else 2)

    @property
    def columns(self) -> int:
        """Columns of the table in which each layer has some."""
        return self.layers * self.layer_inputs

    @property
    def layer_table(self) -> int:
        """Numbers of this table."""
        return self.layer_rows * self.columns

    @property
    def layer_matrices(self) -> float:
        """Numbers of one layer that a token is multiplied with."""
        attention = 2 * self.query_width + (1 + self.values_made) * self.kv_width
        # A layer gates its columns and takes them back; the same matrix for all layers makes what is added to them.
        return self.hidden * (attention + self.mlp_matrices * self.intermediate + 3 * self.layer_inputs)

    @property
    def mlp_matrices(self) -> int:
        """Matrices of an MLP or an expert."""
        return 3 if self.architecture.gated else 2

    @property
    def linear_matrices(self) -> float:
        """Numbers of one layer in matrices that are modules of their own."""
        return self.layer_matrices - 3 * self.hidden * (self.intermediate - self.linear_width)

    @property
    def biases(self) -> float:
        """Numbers of one layer that are added to products."""
        where = self.architecture.bias if self.attention_bias else "none"
        of_inputs = 0 if where == "none" else self.query_width + 2 * self.kv_width
        of_output = self.hidden if where == "all" else 0
        of_mlp = (self.mlp_matrices - 1) * self.intermediate + self.hidden if self.mlp_bias else 0
        of_experts = 0
        if self.architecture.expert_biases:
            of_experts = self.experts * (2 * self.expert_width + self.hidden + 1) + self.heads
        return of_inputs + of_output + of_mlp + of_experts

    @property
    def norm_weights(self) -> float:
        """Numbers of one layer's norms."""
        kind, width = self.architecture, float(self.architecture.norms * self.hidden)
        if kind.head_norms != "none":
            of_heads = (1 + self.keys_normed) * self.head_dim
            width += self.query_width + self.kv_width if kind.head_norms == "width" else of_heads
        width += self.hidden * (self.layer_inputs > 0)
        if kind.inner_norms:
            width += self.query_width + self.intermediate
        return kind.norm_size * width

    @property
    def layer(self) -> float:
        """Parameters of one layer: its matrices, their biases, and its norms."""
        if self.kinds:
            return self.mean(lambda kind: layer_memory.parameters(self.model_type, kind))
        of_activation = 2 * (self.architecture.mlp == "xielu")
        return self.layer_matrices + self.idle + self.biases + self.norm_weights + of_activation

    @property
    def parameters(self) -> int:
        """Parameters of the model, tied ones once."""
        layers = self.layers * self.layer + self.architecture.norm_size * self.hidden
        return round(layers) + self.embeddings + self.layer_table + self.layer_inputs

    def mean(self, of_kind: Callable[[LayerKind], float]) -> float:
        """Mean over all layers of what is known of each kind."""
        counts = {kind: len(kind.places) for kind in self.kinds}
        return sum(num * of_kind(kind) for kind, num in counts.items()) / sum(counts.values())

    @property
    def mixing_flops(self) -> float:
        """FLOPs of a token in convolutions and states of one layer, forward."""
        return self.mean(lambda kind: layer_memory.mixing_flops(self.model_type, kind)) if self.kinds else 0.0

    def flops_per_token(self, context: int, trains: Trains = "all") -> float:
        """FLOPs of one training step per token: 6 for each multiplied number, and attention.

        Attention is counted without the causal half, 12 * layers * width * context, as MFU is
        usually stated. Where only the embeddings learn, the backward pass still goes through
        the frozen layers to reach them but makes no gradients of their weights: 4 instead of 6.

        Source: Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, appendix B.
        """
        per_number = 6 if trains == "all" else 4
        layers = per_number * self.layers * self.layer_matrices
        attended = self.attends * self.query_width
        layers += 3 * self.layers * self.mixing_flops
        return layers + 6 * self.embedding + 12 * self.layers * attended * context


def shape_from(config: Mapping[str, object], name: str) -> Shape:
    """The shape that a `config.json` describes; without a `model_type` it is a Llama's."""
    kind = str(config.get("model_type", "llama"))
    architecture = _architecture(kind)
    defaults = architecture.defaults

    def size(key: str, default: int | None = None) -> int:
        value = config.get(key, defaults.get(key))
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(
                f"{name}/config.json: {key} is {value!r}, not a size; only Llama-like models can be planned"
            )
        return value

    def given(key: str) -> bool:
        return bool(config.get(key, defaults.get(key)))

    # A type may have no MLP but experts.
    widest = next(filter(config.get, ("intermediate_size", "moe_intermediate_size")), "intermediate_size")
    _refuse_others(config, name, kind)
    heads, hidden, width = size("num_attention_heads"), size("hidden_size"), size(widest)
    mixture: dict[str, int] = {}
    if (family := families().get(kind)) and family.experts:
        known = {**defaults, **config}
        # Versions of transformers name the count differently, and Granite's dense models count 0.
        counts = {key: value for key, value in config.items() if key in EXPERT_COUNTS} or defaults
        num = max((size(key) for key in EXPERT_COUNTS if counts.get(key)), default=0 if counts else 1)
        chosen, of_one = min(num, size("num_experts_per_tok", 1)), size("moe_intermediate_size", width)
        shared = known.get("shared_expert_intermediate_size", known.get("shared_intermediate_size"))
        shared = shared if isinstance(shared, int) else 0
        mixture = {"experts": num, "chosen": chosen, "shared": shared if num else 0}
        width = chosen * of_one + shared
    shape = Shape(
        name=name,
        hidden=hidden,
        intermediate=width,
        layers=size("num_hidden_layers"),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", max(1, hidden // heads)),
        vocabulary=size("vocab_size"),
        tied=given("tie_word_embeddings"),
        model_type=kind,
        attention_bias=architecture.has_bias or given(architecture.bias_key),
        mlp_bias=given(architecture.mlp_bias_key),
        rotary_share=_rotary_share(config, defaults),
        scales_logits=logit_scale_and_cap({**defaults, **config})[0] != 1,
        caps_scores=given("attn_logit_softcapping"),
        experts=mixture.get("experts", 0),
        chosen=mixture.get("chosen", 0),
        shared=mixture.get("shared", 0),
    )
    known = {**defaults, **config}
    if architecture.layer_kinds:
        kinds = architecture.layer_kinds({**known, "model_type": kind}, size)
        if unknown := [each.name for each in kinds if not layer_memory.is_known(kind, each)]:
            raise NotPlannedError(
                f"{name}/config.json: layers of the kind {unknown[0]!r} are not planned for the model type {kind!r}, so measure "
                "the memory with a short run of pretrain",
                kind,
            )
        return _of_kinds(shape, kinds)
    if architecture.layer_sizes is None:
        return shape
    if known["hidden_size_per_layer_input"]:
        columns, rows = size("hidden_size_per_layer_input"), size("vocab_size_per_layer_input")
        shape = replace(shape, layer_inputs=columns, layer_rows=rows)
    sizes = architecture.layer_sizes(known, size)
    if len(sizes) != shape.layers:
        raise DataError(
            f"{name}/config.json: layer_types has {len(sizes)} layers, and num_hidden_layers is {shape.layers}"
        )
    return _mean(shape, sizes)


def _mean(shape: Shape, sizes: Sequence[LayerSizes]) -> Shape:
    """The mean of layers, and the widest of them. What a step keeps is a sum over layers, so that the mean is exact for it."""

    def of(layers: Sequence[LayerSizes]) -> Shape:
        heads = sum(each.head_dim for each in layers)
        keys = sum(each.kv_heads * each.head_dim for each in layers)
        values = sum(each.kv_heads * each.head_dim for each in layers if each.has_values)
        return replace(
            shape,
            head_dim=heads / len(layers),
            kv_heads=keys / heads,
            intermediate=sum(each.intermediate for each in layers) / len(layers),
            values_made=values / max(1, keys),
            keys_normed=sum(each.head_dim for each in layers if each.kv_heads) / heads,
        )

    # The last layer of each width of heads that makes them.
    last = {each.head_dim: 2 * each.kv_heads * each.head_dim for each in sizes if each.kv_heads}
    shape = replace(shape, shared_keys=sum(last.values()))
    return replace(of(sizes), widest=of([max(sizes, key=lambda each: (each.head_dim, each.intermediate))]))


def _of_kinds(shape: Shape, kinds: tuple[LayerKind, ...]) -> Shape:
    """The mean of several kinds of layers. Widths of queries and keys give the numbers of matrices."""
    shape = replace(shape, kinds=kinds, intermediate=kinds[0].sizes.get("mlp", shape.intermediate))
    keys = shape.mean(lambda kind: kind.keys)
    mixing = shape.mean(lambda kind: layer_memory.mixing_numbers(shape.model_type, kind))
    queries = mixing / shape.hidden / 2 - keys
    mean = replace(
        shape,
        head_dim=queries / shape.heads,
        kv_heads=shape.heads * keys / queries,
        attends=shape.mean(lambda kind: kind.attended) / queries,
    )
    recurrent = [kind for kind in kinds if not kind.attended]
    return replace(mean, widest=replace(mean, kinds=(recurrent[0],))) if recurrent else mean


def _refuse_others(config: Mapping[str, object], name: str, kind: str) -> None:
    """Refuse layers that the formulas are not of, such as a mixture's with and without experts."""
    for key, planned in _architecture(kind).only.items():
        if config.get(key) not in (None, planned):
            raise NotPlannedError(
                f"{name}/config.json: {key} is {config[key]!r}, and the memory of the model type {kind!r} is planned with "
                f"{planned!r} alone, so measure it with a short run of pretrain",
                kind,
            )


def _architecture(model_type: str) -> Architecture:
    family = families().get(model_type)
    return family.architecture if family and family.architecture else LLAMA


def _rotary_share(config: Mapping[str, object], defaults: Mapping[str, object]) -> float:
    """`partial_rotary_factor`, which transformers 5 writes among `rope_parameters` and 4 beside them."""
    rope = config.get("rope_parameters")
    places = (rope if isinstance(rope, Mapping) else {}, config, defaults)
    result = next((each["partial_rotary_factor"] for each in places if "partial_rotary_factor" in each), None)
    return float(result) if isinstance(result, int | float) and defaults.get("partial_rotary_factor") else 1.0


def base_shape(recipe: Recipe) -> Shape:
    """The shape of the recipe's base model.

    A model that is known by name needs no network; of another hub model `config.json` is fetched.
    """
    model = recipe.base.model
    if model == TINY:
        tied = {"vocab_size": TINY_VOCABULARY, "tie_word_embeddings": True}
        return shape_from({**TINY_SHAPE, **tied}, TINY)
    folder = Path(model).expanduser()
    known = KNOWN.get(model.removesuffix("-Instruct"))
    if known is not None and not is_local(model):
        return shape_from(known, model)
    if not is_local(model):
        folder = from_hub(recipe.base, ("config.json",))
    config = model_config(folder)
    check_family(config, {}, strategies=recipe.tokenizer.strategies)
    kind = str(config["model_type"])
    planned = sorted(each.model_type for each in families().values() if each.architecture)
    if kind not in planned:
        family = families()[kind]
        reason = f" ({family.unplanned})" if family.unplanned else ""
        raise NotPlannedError(
            f"base.model: the memory of the model type {kind!r} is not planned{reason}, only that "
            f"of {', '.join(planned)}; a guess would be wrong, so measure it with a short run of pretrain",
            kind,
        )
    shape = shape_from(config, model)
    if shape.tied and has_weights(folder) and is_local(model):
        tables = families()[kind].names.tables
        return replace(shape, tied=not holds_own_head(stored_tensors(folder), tables))
    return shape


def trained_shape(recipe: Recipe) -> Shape:
    """The shape that is trained: the base's, with the vocabulary that the tokenizer stage makes.

    Where several sizes are compared, the largest is planned for: it needs the most memory.
    """
    base = base_shape(recipe)
    size, pad_to = recipe.tokenizer.largest_size, recipe.tokenizer.pad_to
    sizes = {"extend": base.vocabulary + size, "replace": size}
    rows = {strategy: -(-size // pad_to) * pad_to for strategy, size in sizes.items()}
    return replace(base, vocabulary=rows.get(recipe.tokenizer.strategy, base.vocabulary))
