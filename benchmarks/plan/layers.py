"""Write `layer_memory.json` of the planner: memory of the layers of hybrid types, from the engine on fake tensors.

`python -m benchmarks.plan.layers [TYPE...]` takes some minutes a kind of layers, so that nothing runs it but a person who has
another transformers. Whatever a layer holds is a sum of products of its sizes. So layers of several small sizes tell all
factors, and the script stops where one sum does not fit every layer.
"""

import json
import logging
import random
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
from tests.kit import fake_run
from torch.utils.flop_counter import flop_registry

from anadil.core.stages import BUILT_IN
from anadil.estimate import layer_memory
from anadil.estimate.layout import Layout, Precision, Recompute, Work
from anadil.estimate.model_shape import Shape, Trains
from anadil.model.family_table import families
from anadil.pretrain.parallel import parallelize as engine
from anadil.recipe.load import load_recipe
from anadil.recipe.pretrain import Phase

TARGET = Path(layer_memory.__file__).with_suffix(".json")
Sizes = Mapping[str, int]
Numbers = np.ndarray[Any, np.dtype[np.float64]]
Basis = Sequence[str]
TOKENS = 1_024
NUMERICS: Mapping[str, tuple[Precision, Precision]] = {
    "autocast": ("fp32", "bf16"),
    "2": ("bf16", "bf16"),
    "4": ("fp32", "fp32"),
}
"""Name -> precision of weights and of products: FP32 weights that autocast casts, or both of so many bytes."""
TRAINS: tuple[Trains, ...] = ("all", "embeddings")
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
WORST = 0.01
"""Share of a peak below which a moment is left out."""
TOTAL = 400
"""Layers of real sizes whose peaks the moments have to show."""

HEADS = ["heads*head", "kv_heads*head", "heads", "kv_heads", "head"]
OF_HEADS = ["hidden*heads*head", "hidden*kv_heads*head", "heads*head", "kv_heads*head", "head"]
DELTA = [
    "key_heads*key",
    "value_heads*key",
    "value_heads*value",
    "value_heads",
    "key_heads",
    "value_heads*key*value",
]
OF_DELTA = [
    "hidden*key_heads*key",
    "hidden*value_heads*value",
    "hidden*value_heads",
    "key_heads*key",
    "value_heads*value",
    "value_heads",
    "value",
]
EQUAL = ["value_heads*key", "value_heads*value", "value_heads", "value_heads*key*value"]
OF_EQUAL = [
    "hidden*value_heads*key", "hidden*value_heads*value", "hidden*value_heads", "value_heads*key", "value_heads*value",
    "value_heads", "value",
]  # fmt: skip
SPACE = ["space*space_head", "space", "groups*state", "groups", "space*state", "space*space_head*state"]
OF_SPACE = [
    "hidden*space*space_head",
    "hidden*groups*state",
    "hidden*space",
    "space*space_head",
    "groups*state",
    "space",
]
MLP, OF_MLP = ["mlp"], ["hidden*mlp"]
EXPERTS = ["experts", "chosen", "chosen*expert", "chosen*hidden", "shared"]
OF_EXPERTS = ["experts*hidden*expert", "experts*hidden", "hidden*shared", "experts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of layers of a type."""

    config: Callable[[Sizes], dict[str, Any]]
    """Keys of config.json that give a layer its sizes."""
    token: Basis
    """Products of sizes that a token's bytes are a sum of."""
    recurrent: bool
    """True if it looks back by a convolution or a state."""
    layer: Basis
    """The same of bytes that do not depend on tokens, and of parameters."""


def _types(layer_type: str, other: str = "linear_attention") -> list[str]:
    """Two layers of one type, above one of another, which OLMo Hybrid asks for."""
    return ["full_attention" if layer_type == other else other, *[layer_type] * 2]


def _delta(layer_type: str, model_type: str, *, equal: bool = False) -> Callable[[Sizes], dict[str, Any]]:
    def config(sizes: Sizes) -> dict[str, Any]:
        return {
            "model_type": model_type, "layer_types": _types(layer_type),
            "linear_num_key_heads": sizes["value_heads" if equal else "key_heads"], "linear_num_value_heads": sizes["value_heads"],
            "linear_key_head_dim": sizes["key"], "linear_value_head_dim": sizes["value"],
            "num_experts": sizes["experts"], "num_experts_per_tok": sizes["chosen"],
            "moe_intermediate_size": sizes["expert"], "shared_expert_intermediate_size": sizes["shared"],
        }  # fmt: skip

    return config


def _conv(layer_type: str) -> Callable[[Sizes], dict[str, Any]]:
    return lambda _: {
        "model_type": "lfm2", "layer_types": _types(layer_type, "conv"), "block_auto_adjust_ff_dim": False,
    }  # fmt: skip


def _space(layer_type: str, *, has_experts: bool) -> Callable[[Sizes], dict[str, Any]]:
    def config(sizes: Sizes) -> dict[str, Any]:
        return {
            "model_type": "granitemoehybrid", "layer_types": _types(layer_type),
            "mamba_n_heads": sizes["space"], "mamba_d_head": sizes["space_head"],
            "mamba_expand": sizes["space"] * sizes["space_head"] // sizes["hidden"],
            "mamba_d_state": sizes["state"], "mamba_n_groups": sizes["groups"],
            "num_local_experts": sizes["experts"] if has_experts else 0,
            "num_experts_per_tok": sizes["chosen"], "intermediate_size": sizes["expert"],
            "shared_intermediate_size": sizes["shared"],
        }  # fmt: skip

    return config


def _kind(config: Callable[[Sizes], dict[str, Any]], token: Basis, layer: Basis) -> Kind:
    return Kind(
        config=config,
        recurrent="kv_heads" not in token,
        token=["", "hidden", *token],
        layer=["", "hidden", *layer],
    )


def _delta_kinds(model_type: str, mlp: Basis, of_mlp: Basis) -> dict[str, Kind]:
    """Values have as many heads as keys in OLMo Hybrid and in small Qwen 3.5, and more in others."""
    linear, full = "linear_attention", "full_attention"
    more = _kind(_delta(linear, model_type), [*DELTA, *mlp], [*OF_DELTA, *of_mlp])
    equal = _kind(_delta(linear, model_type, equal=True), [*EQUAL, *mlp], [*OF_EQUAL, *of_mlp])
    return {
        **({} if model_type == "olmo_hybrid" else {linear: more}),
        **({} if model_type == "qwen3_5_moe_text" else {f"{linear}, equal heads": equal}),
        full: _kind(_delta(full, model_type), [*HEADS, *mlp], [*OF_HEADS, *of_mlp]),
    }


def _space_kinds(mixture: str, mlp: Basis, of_mlp: Basis) -> dict[str, Kind]:
    mamba, attention = (
        _space(each, has_experts=bool(mixture)) for each in ("linear_attention", "full_attention")
    )
    return {
        f"mamba{mixture}": _kind(mamba, [*SPACE, *mlp], [*OF_SPACE, *of_mlp]),
        f"attention{mixture}": _kind(attention, [*HEADS, *mlp], [*OF_HEADS, *of_mlp]),
    }


KINDS: Mapping[str, Mapping[str, Kind]] = {
    "lfm2": {
        "conv": _kind(_conv("conv"), MLP, ["hidden*hidden", *OF_MLP]),
        "full_attention": _kind(_conv("full_attention"), [*MLP, *HEADS], [*OF_MLP, *OF_HEADS]),
    },
    "qwen3_5_text": _delta_kinds("qwen3_5_text", MLP, OF_MLP),
    "olmo_hybrid": _delta_kinds("olmo_hybrid", MLP, OF_MLP),
    "qwen3_5_moe_text": _delta_kinds("qwen3_5_moe_text", EXPERTS, OF_EXPERTS),
    "granitemoehybrid": {
        **_space_kinds("", ["shared"], ["hidden*shared"]),
        **_space_kinds(", experts", EXPERTS, OF_EXPERTS),
    },
}


def small(chance: random.Random) -> dict[str, int]:
    """Sizes of which none is one, which transposes and repeats treat apart."""
    heads, key_heads, space_head = chance.choice((2, 3, 4)), chance.choice((2, 3, 4)), chance.choice((8, 16))
    space = chance.choice((12, 18, 24))
    return {
        "hidden": space * space_head // chance.choice((1, 2, 3)), "mlp": chance.choice((72, 144, 200, 272)),
        "kv_heads": heads, "heads": heads * chance.choice((2, 3, 4)), "head": chance.choice((16, 32, 48, 64)),
        "key_heads": key_heads, "value_heads": key_heads * chance.choice((2, 3)),
        "key": chance.choice((16, 24, 32, 40)), "value": chance.choice((16, 24, 32, 48)),
        "space": space, "space_head": space_head, "groups": chance.choice((2, 3, 6)), "state": chance.choice((8, 16, 24)),
        "experts": chance.choice((5, 6, 8, 11)), "chosen": chance.choice((2, 3, 4)),
        "expert": chance.choice((24, 40, 56, 72)), "shared": chance.choice((32, 64, 80, 112)),
    }  # fmt: skip


def large(chance: random.Random) -> dict[str, int]:
    """Sizes as people train them."""
    hidden = chance.choice((512, 1_024, 1_536, 2_048, 2_560, 4_096, 5_120))
    return {
        "hidden": hidden, "mlp": hidden * chance.choice((1, 2, 3, 4, 6)), "kv_heads": chance.choice((2, 4, 8)),
        "heads": hidden // 64, "head": chance.choice((64, 128, 256)), "key_heads": 16,
        "value_heads": chance.choice((16, 32, 48)), "key": chance.choice((64, 128)),
        "value": chance.choice((64, 128, 192)), "space": 2 * hidden // 64,
        "space_head": 64, "groups": 1, "state": chance.choice((64, 128, 256)), "experts": chance.choice((4, 8, 32, 64, 128, 256)),
        "chosen": chance.choice((1, 2, 4, 8, 10)),
        "expert": chance.choice((256, 512, 768, 1_024, 2_048)),
        "shared": chance.choice((256, 512, 1_024, 2_048, 4_096, 8_192)),
    }  # fmt: skip


class Log(fake_run.AllocatedBytes):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Bytes after each operator."""

    last: ClassVar["Log"]

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.launches: list[bool] = []
        self.flops = 0
        Log.last = self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self.rows.append(self.bytes)
        self.launches.append(func.namespace == "aten" and not func.is_view)
        if count := flop_registry.get(func.overloadpacket):
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The second of three layers in one step."""

    saved: int
    """Bytes that it keeps for its backward pass."""
    forward: Numbers
    """Bytes after each operator of its forward pass, above those with which that begins."""
    backward: Numbers
    """The same of its backward pass, with a second forward pass where there is one."""
    operators: list[int]
    """Operators of both passes that are more than another look at a tensor."""
    parameters: int
    matrices: int
    """Numbers in matrices that are modules."""
    flops: float
    """FLOPs of a token in the forward pass, less the FLOPs of these matrices."""


def see(config: dict[str, Any], sizes: Sizes, work: Work, layout: Layout) -> Seen:
    """Run a step of three layers on fake tensors."""
    shape = Shape(
        name="x", hidden=sizes["hidden"], intermediate=sizes["mlp"], layers=3, heads=sizes["heads"],
        kv_heads=sizes["kv_heads"], head_dim=sizes["head"], vocabulary=320, tied=False, model_type=config["model_type"],
    )  # fmt: skip
    settings = fake_run.with_layout(load_recipe(BUILT_IN).pretrain, layout, work)
    phase = Phase(trains=work.trains, steps=1, lr=1e-5)
    settings = settings.model_copy(update={"phases": (phase,), "compile": False, "matmul": "same"})
    begins: dict[int, tuple[int, int]] = {}
    ends: dict[int, tuple[int, int]] = {}
    flops: dict[int, int] = {}
    counts: list[int] = []
    parallelize = engine.parallelize

    def watched(model: Any, *others: Any) -> Any:
        layers = list(model.get_submodule(families()[shape.model_type].names.layers).children())
        counts.append(sum(each.numel() for each in layers[1].parameters()))
        modules = [each for each in layers[1].modules() if isinstance(each, torch.nn.Linear)]
        counts.append(sum(each.weight.numel() for each in modules))
        for number, layer in enumerate(layers):

            def before(_: Any, args: Any, kwargs: Any, number: int = number) -> None:
                if torch._C._current_graph_task_id() == -1:  # noqa: SLF001  # else it is a second forward pass
                    states = args[0] if args else kwargs["hidden_states"]
                    begins[number] = len(Log.last.rows), Log.last.bytes
                    flops[number] = Log.last.flops
                    states.register_hook(
                        lambda _: ends.__setitem__(number, (len(Log.last.rows), Log.last.bytes))
                    )

            layer.register_forward_pre_hook(before, with_kwargs=True)
        return parallelize(model, *others)

    more = {key: value for key, value in config.items() if key != "model_type"}
    with (
        mock.patch.object(fake_run, "AllocatedBytes", Log),
        mock.patch.object(engine, "parallelize", watched),
    ):
        fake_run.peak_of(shape, layout, work, settings, 0, more)
    (first, base), (last, _) = ends[2], ends[1]
    begin, below = begins[1]
    rows, launches = np.array(Log.last.rows, dtype=float), Log.last.launches
    return Seen(
        saved=begins[2][1] - below, forward=rows[begin : begins[2][0]] - below, backward=rows[first:last] - base,
        parameters=counts[0], matrices=counts[1],
        operators=[sum(launches[begin : begins[2][0]]), sum(launches[first:last])],
        flops=(flops[2] - flops[1]) / layout.micro_batch_size / work.sequence_length - 2 * counts[1],
    )  # fmt: skip


def products(sizes: Sizes, basis: Basis) -> Numbers:
    """The products of a basis."""
    return np.array([np.prod([float(sizes[each]) for each in name.split("*") if each]) for name in basis])


def factors(values: Numbers, layers: Sequence[Sizes], basis: Basis, name: str) -> Numbers:
    """Factors of a basis, (products, ...), of values, (layers, ...)."""
    table = np.array([products(each, basis) for each in layers])
    scale = table.max(0)
    found, _, rank, _ = np.linalg.lstsq(table / scale, values, rcond=None)
    found = found / scale.reshape(-1, *[1] * (values.ndim - 1))
    wrong = np.abs(table @ found - values).max() / np.abs(values).max()
    if rank < len(basis) or wrong > 1e-6:
        raise SystemExit(f"{name}: {basis} do not explain it: rank {rank}, {wrong:.1e} off")
    result: Numbers = found
    return result


def named(values: Numbers, basis: Basis) -> dict[str, float]:
    """Factors that are not 0, by their products."""
    rounded = {name: round(float(value), 5) for name, value in zip(basis, values, strict=True)}
    return {
        name: int(value) if value == int(value) else value
        for name, value in rounded.items()
        if abs(value) > 1e-4
    }


def fitted(kind: Kind, name: str) -> dict[str, Any]:
    """Memory of one kind of layers, by numerics, what learns and recomputation."""
    chance = random.Random(1)  # noqa: S311
    layers = [small(chance) for _ in range(max(len(kind.token), len(kind.layer)) + 2)]
    real = [(large(chance), 2 ** chance.randint(9, 17)) for _ in range(TOTAL)]
    steps: dict[str, Any] = {}
    for (numeric, (state, compute)), trains, recompute in product(NUMERICS.items(), TRAINS, RECOMPUTE):
        work = Work(sequence_length=TOKENS, trains=trains, state=state, compute=compute, kernels="torch")
        key = f"{numeric} {trains} {recompute}"
        steps[key], seen = fitted_step(kind, layers, real, work, recompute)
        print(name, key, file=sys.stderr, flush=True)
    counts = {
        each: named(factors(np.array([getattr(one, each) for one in seen]), layers, kind.layer, each), kind.layer)
        for each in ("parameters", "matrices")
    }  # fmt: skip
    if kind.recurrent:  # attention's grow with the sequence
        counts["flops"] = mixing_flops(kind, layers, seen)
    return {**counts, "steps": steps}


def mixing_flops(kind: Kind, layers: Sequence[Sizes], seen: Sequence[Seen]) -> dict[str, float]:
    """Factors of a token's FLOPs beside matrices and experts."""
    basis = [*kind.token, "hidden*experts"] if "experts" in kind.token else kind.token
    found = named(factors(np.array([each.flops for each in seen]), layers, basis, "flops"), basis)
    return {name: value for name, value in found.items() if "experts" not in name}


def fitted_step(
    kind: Kind, layers: Sequence[Sizes], real: Sequence[tuple[Sizes, int]], work: Work, recompute: Recompute
) -> tuple[dict[str, Any], list[Seen]]:
    """Memory of one kind of layers in one kind of steps, and the layers that tell it."""
    # The first one finds the documents' places, which all later ones share.
    two, four = (
        [see(kind.config(each), each, work, Layout(micro_batch_size=size, recompute=recompute)) for each in (layers[0], *layers)][1:]
        for size in (2, 4)
    )  # fmt: skip
    saved = np.array([b.saved - a.saved for a, b in zip(two, four, strict=True)]) / (2 * TOKENS)
    backward = [each.backward for each in two], [each.backward for each in four]
    result: dict[str, Any] = {
        "saved": named(factors(saved, layers, kind.token, "saved"), kind.token),
        "backward": moments(*backward, layers, kind, real),
    }
    if recompute == "none":  # a second forward pass has what the first one has, and more
        forward = [each.forward for each in two], [each.forward for each in four]
        result |= {"forward": moments(*forward, layers, kind, real), "operators": two[0].operators}
    return result, two


def moments(
    two: Sequence[Numbers], four: Sequence[Numbers], layers: Sequence[Sizes], kind: Kind,
    real: Sequence[tuple[Sizes, int]],
) -> list[list[dict[str, float]]]:  # fmt: skip
    """Factors of a token's bytes and of the layer's at each worst moment, of passes of two and of four sequences."""
    if len({len(each) for each in (*two, *four)}) > 1:
        raise SystemExit("layers take different operators")
    token = np.array([b - a for a, b in zip(two, four, strict=True)]) / (2 * TOKENS)
    fixed = np.array(two) - token * 2 * TOKENS
    per_token = factors(token, layers, kind.token, "bytes of a token")
    per_layer = factors(fixed, layers, kind.layer, "bytes of a layer")
    peaks = np.array([
        products(sizes, kind.token) @ per_token * tokens + products(sizes, kind.layer) @ per_layer for sizes, tokens in real
    ])  # fmt: skip
    return [[named(per_token[:, at], kind.token), named(per_layer[:, at], kind.layer)] for at in cover(peaks)]


def cover(peaks: Numbers) -> list[int]:
    """Columns, taken greedily, so that each row is near its largest number in some column."""
    near = peaks >= peaks.max(1, keepdims=True) - WORST * np.abs(peaks).max(1, keepdims=True)
    chosen: list[int] = []
    left = np.ones(len(peaks), dtype=bool)
    while left.any():
        chosen.append(int(near[left].sum(0).argmax()))
        left &= ~near[:, chosen[-1]]
    return chosen


def main() -> None:
    """Write the rows that are named, as `lfm2` or `lfm2/conv`, or all of them."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for model_type, kinds in KINDS.items():
        for name, kind in kinds.items():
            if len(sys.argv) > 1 and not {model_type, f"{model_type}/{name}"} & {*sys.argv}:
                continue
            made = fitted(kind, f"{model_type}, {name}")
            table = json.loads(TARGET.read_text(encoding="utf-8")) if TARGET.is_file() else {}
            table[model_type] = {**table.get(model_type, {}), name: made}
            rows = (
                f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}"
                for key, value in sorted(table.items())
            )
            TARGET.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
