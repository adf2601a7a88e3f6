"""Shapes and memory of every model type that is planned, beside transformers' own models."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import DataError, PreflightError
from anadil.estimate.instances import machine
from anadil.estimate.layout import Layout, Work
from anadil.estimate.memory import peak_memory
from anadil.estimate.model_shape import NotPlannedError, Shape, base_shape, shape_from
from anadil.estimate.search import search
from anadil.model.family import SHARD_LAYOUTS, Family
from anadil.model.family_table import families, supports
from anadil.preflight.memory import check_fits
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from tests.kit.marks import matrix

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

PLANNED = sorted(kind for kind, family in families().items() if family.architecture)
WORST = 0.005
"""Most that the closed form may be off, as for Llama in test_fake_run.py."""
HAS_LIGER = all(importlib.util.find_spec(name) for name in ("liger_kernel", "triton"))
SIZES = {
    "hidden_size": 1_024, "intermediate_size": 3_072, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 8, "vocab_size": 32_000,
}  # fmt: skip
BARE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
LEAST: dict[str, dict[str, Any]] = {
    kind: {"head_dim": 64} for kind in ("helium", "hunyuan_v1_dense", "ministral")
}
"""Keys without which transformers makes no model of a type, or one that does not run."""
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1_024}
DELTA = {"num_hidden_layers": 4, "linear_num_value_heads": 16, "head_dim": 64}
MORE: dict[str, dict[str, Any]] = {
    # Gemma's default heads, 256 wide, are for few: sixteen would make queries four times as wide as the states.
    "gemma": {"head_dim": 128},
    "gemma2": {"head_dim": 128, "attn_implementation": "eager"},
    "gemma3_text": {"head_dim": 128},
    "gemma4_text": {
        "num_hidden_layers": 6,
        "head_dim": 64,
        "global_head_dim": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 64,
        "vocab_size_per_layer_input": 32_000,
    },
    "gpt_neox": {"num_key_value_heads": 16},
    "granitemoehybrid": {
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "mamba_n_heads": 32,
        "mamba_d_state": 128,
        "num_local_experts": 8,
        "intermediate_size": 512,
    },
    "helium": {"head_dim": 64},
    "lfm2": {"num_hidden_layers": 6, "full_attn_idxs": [2, 5]},
    "olmo_hybrid": {"num_hidden_layers": 4},
    "persimmon": {"num_key_value_heads": 16},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "attn_implementation": "eager"},
    "mixtral": {"num_local_experts": 8},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 1_024},
    "qwen3_5_moe_text": EXPERTS
    | DELTA
    | {"linear_num_value_heads": 32, "shared_expert_intermediate_size": 512},
    "qwen3_5_text": DELTA,
    "qwen3_moe": EXPERTS,
}
"""Keys of config.json by type, beside `SIZES`."""
VARIANTS: dict[str, dict[str, Any]] = {
    "a Llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "a Llama without heads of keys": {"model_type": "llama", "num_key_value_heads": None},
    "Qwen3 with biases": {"model_type": "qwen3", "attention_bias": True},
    "OLMo 2 with biases": {"model_type": "olmo2", "attention_bias": True},
    "GLM-4 without biases": {"model_type": "glm4", "attention_bias": False},
    "tied Mistral": {"model_type": "mistral", "tie_word_embeddings": True},
    "Mistral with wide heads": {"model_type": "mistral", "head_dim": 128},
    "StarCoder 2 without biases": {"model_type": "starcoder2", "use_bias": False},
    "Arcee with biases": {"model_type": "arcee", "attention_bias": True, "mlp_bias": True},
}
LAYOUTS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "one device": (Layout(micro_batch_size=4), {}),
    "one device, bf16": (Layout(micro_batch_size=4), {"state": "bf16"}),
    "one device, embeddings": (Layout(micro_batch_size=4), {"trains": "embeddings"}),
    "one device, selective": (Layout(micro_batch_size=4, recompute="selective"), {}),
    "one device, embeddings, selective": (
        Layout(micro_batch_size=4, recompute="selective"),
        {"trains": "embeddings"},
    ),
    "one device, full": (Layout(micro_batch_size=8, recompute="full"), {}),
    "FSDP": (Layout(data=8, shard=8, micro_batch_size=4), {}),
    "FSDP, full": (Layout(data=8, shard=8, micro_batch_size=8, recompute="full"), {}),
    "FSDP, selective": (Layout(data=8, shard=8, micro_batch_size=8, recompute="selective"), {}),
    "FSDP, embeddings, full": (
        Layout(data=8, shard=8, micro_batch_size=4, recompute="full"),
        {"trains": "embeddings"},
    ),
}
MIXTURES: dict[str, dict[str, Any]] = {
    "phimoe": {"model_type": "phimoe", "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_next": {"model_type": "qwen3_next", "num_experts": 128, "moe_intermediate_size": 768},
}


def config_json(kind: str, *sizes: int, **others: Any) -> dict[str, Any]:
    """Sizes in a hub model's config.json, in the order of `BARE`."""
    return {"model_type": kind, **dict(zip(BARE, sizes, strict=True)), **others}


def text_of(name: str) -> dict[str, Any]:
    """Settings of a published checkpoint's text model."""
    file = Path(__file__).parents[1] / "kit/published_configs.json"
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))[name]
    config = config.get("text_config", config)
    return {key: value for key, value in config.items() if key != "pad_token_id"}


REAL = {
    "Llama 3.2 1B": config_json("llama", 2_048, 8_192, 16, 32, 128_256, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True),
    "Mistral 7B v0.3": config_json("mistral", 4_096, 14_336, 32, 32, 32_768, sliding_window=None),
    "Qwen2.5 0.5B": config_json("qwen2", 896, 4_864, 24, 14, 151_936, num_key_value_heads=2, tie_word_embeddings=True),
    "Qwen3 0.6B": config_json("qwen3", 1_024, 3_072, 28, 16, 151_936, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    "OLMo 2 1B": config_json("olmo2", 2_048, 8_192, 16, 16, 100_352),
    "GLM-4 9B": config_json("glm4", 4_096, 13_696, 40, 32, 151_552, num_key_value_heads=2, head_dim=128, attention_bias=True, partial_rotary_factor=0.5),
    "Gemma 3 270M": config_json("gemma3_text", 640, 2_048, 18, 4, 262_144, num_key_value_heads=1, head_dim=256, sliding_window=512),
    "Gemma 3 1B": config_json("gemma3_text", 1_152, 6_912, 26, 4, 262_144, num_key_value_heads=1, head_dim=256, sliding_window=512),
    "Gemma 4 31B": text_of("google/gemma-4-31B"),
    "Gemma 4 E2B": text_of("google/gemma-4-E2B"),
    "LFM2 1.2B": text_of("LiquidAI/LFM2-1.2B"),
    "OLMo Hybrid 7B": text_of("allenai/Olmo-Hybrid-7B"),
    "Qwen3.5 9B": text_of("Qwen/Qwen3.5-9B-Base"),
    "Qwen3.5 35B-A3B": text_of("Qwen/Qwen3.5-35B-A3B-Base"),
}  # fmt: skip


def parameters_of(config: Any) -> int:
    """Of transformers' own model."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


CONFIGS = {
    **REAL,
    **{name: {**SIZES, **changed} for name, changed in VARIANTS.items()},
    **{
        f"{kind} with the defaults of its type": {"model_type": kind}
        | {key: SIZES[key] for key in BARE}
        | LEAST.get(kind, {})
        for kind in PLANNED
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shape_has_the_parameters_of_transformers_model_and_so_has_the_model_that_is_made_of_it(
    name: str,
) -> None:
    from transformers import AutoConfig

    from tests.kit.fake_run import config_of

    settings = CONFIGS[name]
    shape = shape_from(settings, name)

    # Widths and numbers of experts are not those of a shape, but what a token meets.
    is_mean = shape.experts or shape.widest or shape.kinds
    kept = {key: value for key, value in settings.items() if is_mean and key != "model_type"}
    made = config_of(shape, 2_048, {**kept, "attn_implementation": "eager"})

    assert shape.parameters == parameters_of(AutoConfig.for_model(**settings, pad_token_id=None))
    assert shape.parameters == parameters_of(made)
    assert made.model_type == shape.model_type


@pytest.mark.parametrize("kind", PLANNED)
def test_a_config_that_transformers_has_written_gives_the_same_shape(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    settings = SIZES | MORE.get(kind, {}) | {"model_type": kind, "tie_word_embeddings": True}
    AutoConfig.for_model(**settings).save_pretrained(tmp_path)

    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))

    assert "rope_parameters" in written
    assert shape_from(written, "x") == shape_from(settings, "x")


def test_sizes_by_layer_that_transformers_has_written_are_those_of_the_published_keys(tmp_path: Path) -> None:
    from transformers import AutoConfig

    published = text_of("google/gemma-4-31B")
    AutoConfig.for_model(**published).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))

    assert "per_layer_config" in written
    assert shape_from(written, "x") == shape_from(published, "x")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"layer_types": ["full_attention"]},
            r"x/config\.json: layer_types has 1 layers, and num_hidden_layers is 6",
        ),
        (
            {"layer_types": ["chunked_attention"] * 6},
            "layer_types has 'chunked_attention', and Gemma 4 knows",
        ),
        ({"num_key_value_heads": None}, r"x/config\.json: num_key_value_heads is None, not a size"),
        ({"global_head_dim": "32"}, r"x/config\.json: global_head_dim is '32', not a size"),
    ],
)
def test_layers_whose_sizes_are_wrong_are_refused_by_key(changes: dict[str, Any], words: str) -> None:
    settings = SIZES | MORE["gemma4_text"] | {"model_type": "gemma4_text"}

    with pytest.raises(DataError, match=words):
        shape_from(settings | changes, "x")


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (
            "qwen3_5_text",
            {"layer_types": ["full_attention"]},
            r"layer_types has 1 layers, and num_hidden_layers is 4",
        ),
        (
            "lfm2",
            {"layer_types": ["conv", "mamba"] * 3},
            r"layer_types has 'mamba', and lfm2 knows conv and full_attention",
        ),
        (
            "olmo_hybrid",
            {"linear_key_head_dim": 0.5},
            r"x/config\.json: linear_key_head_dim is 0\.5, not a size",
        ),
        ("lfm2", {"block_ffn_dim_multiplier": "1"}, r"block_ffn_dim_multiplier is '1', not a number"),
        ("lfm2", {"full_attn_idxs": 3}, r"full_attn_idxs is 3, not a list of layers"),
        ("granitemoehybrid", {"mamba_n_heads": "8"}, r"x/config\.json: mamba_n_heads is '8', not a size"),
    ],
)
def test_kinds_of_layers_that_are_wrong_are_refused_by_key(
    kind: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        shape_from(SIZES | MORE[kind] | {"model_type": kind} | changes, "x")


def test_a_kind_of_layers_without_a_row_of_the_table_is_not_guessed() -> None:
    settings = SIZES | MORE["olmo_hybrid"] | {"model_type": "olmo_hybrid", "linear_num_value_heads": 32}

    with pytest.raises(
        NotPlannedError, match=r"x/config\.json: layers of the kind 'linear_attention' are not planned"
    ):
        shape_from(settings, "x")


def test_the_widest_layer_is_planned_with_the_vocabulary_that_is_trained() -> None:
    base, work = of_kind("gemma4_text"), Work(sequence_length=2_048)
    layout = Layout(data=8, shard=8, micro_batch_size=4, recompute="full")
    small = SIZES | MORE["gemma4_text"] | {"model_type": "gemma4_text", "vocab_size": 4_096}

    assert peak_memory(replace(base, vocabulary=4_096), layout, work) == peak_memory(
        shape_from(small, "x"), layout, work
    )


def test_transformers_4_and_5_say_the_rotated_share_in_different_places() -> None:
    four = shape_from(SIZES | {"model_type": "glm4", "partial_rotary_factor": 0.25}, "x")
    five = shape_from(
        SIZES | {"model_type": "glm4", "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}},
        "x",
    )

    assert four == five
    assert four.rotary_share == 0.25
    assert shape_from(SIZES | {"model_type": "glm4"}, "x").rotary_share == 0.5
    assert shape_from(SIZES | {"model_type": "qwen3", "partial_rotary_factor": 0.5}, "x").rotary_share == 1


def of_kind(kind: str) -> Shape:
    return shape_from({**SIZES, **MORE.get(kind, {}), "model_type": kind}, kind)


@pytest.mark.skipif(not HAS_LIGER, reason="liger-kernel and triton are not installed")
@pytest.mark.parametrize("name", [name if name == "FSDP, full" else matrix(name) for name in LAYOUTS])
@pytest.mark.parametrize(
    "kind",
    [
        kind
        if kind in ("gemma2", "gemma3_text", "gemma4_text", "lfm2", "mixtral", "qwen3", "qwen3_5_text")
        else matrix(kind)
        for kind in PLANNED
        if kind != "llama"
    ],
)
def test_the_closed_form_is_what_the_engine_holds_on_fake_tensors(kind: str, name: str) -> None:
    from tests.kit.fake_run import exact_peak

    layout, changed = LAYOUTS[name]
    if layout.shard > 1 and not supports(kind, "shard"):
        pytest.skip("the type is not sharded")
    work = Work(sequence_length=2_048, **changed)

    exact = exact_peak(of_kind(kind), layout, work, more=SIZES | MORE.get(kind, {}))
    closed = peak_memory(of_kind(kind), layout, work)

    # The shared expert of a mixture, what a first forward pass holds, and copies for autocast are counted at moments when
    # they are gone. Where layers differ, the widest one counts beside means of those above it.
    shape = of_kind(kind)
    most = 0.03 if shape.experts or shape.caps_scores or shape.widest else WORST
    least = 0.01 if shape.widest else WORST
    assert -least < closed.allocated / exact - 1 < most, f"{closed.allocated:,} against {exact:,}: {closed}"


def based_on(tmp_path: Path, settings: dict[str, Any], *overrides: str) -> Recipe:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return load_recipe("azerbaijani-1b", [f"base.model={folder}", *overrides])


@pytest.mark.parametrize("kind", MIXTURES)
def test_a_mixture_of_experts_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    recipe = based_on(tmp_path, SIZES | MIXTURES[kind])

    for refuse in (base_shape, lambda one: check_fits(one, here=False)):
        with pytest.raises(
            PreflightError, match=rf"base\.model: model type '{kind}' is a mixture of experts"
        ):
            refuse(recipe)


MIXTRAL = config_json(
    "mixtral",
    4_096,
    14_336,
    32,
    32,
    32_000,
    num_key_value_heads=8,
    num_local_experts=8,
    num_experts_per_tok=2,
)
QWEN = config_json(
    "qwen3_moe", 2_048, 6_144, 48, 32, 151_936, num_key_value_heads=4, head_dim=128, num_experts=128,
    num_experts_per_tok=8, moe_intermediate_size=768,
)  # fmt: skip


# Billions of parameters as their makers give them, total and active.
@pytest.mark.parametrize(("config", "total", "active"), [(MIXTRAL, 46.7, 12.9), (QWEN, 30.5, 3.3)])
def test_experts_that_a_token_does_not_meet_count_as_parameters_and_not_as_products(
    config: dict[str, Any], total: float, active: float
) -> None:
    shape = shape_from(config, "x")

    assert shape.parameters / 1e9 == pytest.approx(total, rel=0.01)
    assert (shape.parameters - shape.layers * shape.idle) / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    "settings",
    [
        QWEN | {"mlp_only_layers": [0]},
        QWEN | {"decoder_sparse_step": 2},
        SIZES | {"model_type": "hyperclovax", "use_post_norm": False},
        SIZES | {"model_type": "arcee", "hidden_act": "gelu"},
    ],
    ids=["dense layer", "every second", "no norms after", "another activation"],
)
def test_layers_of_another_kind_are_not_planned_by_the_formulas_of_their_type(
    settings: dict[str, Any],
) -> None:
    key = next(reversed(settings))
    with pytest.raises(
        NotPlannedError,
        match=rf"x/config\.json: {key} is .*, and the memory of the model type '.*' is planned with",
    ):
        shape_from(settings, "x")


def test_a_type_that_is_not_planned_says_why(tmp_path: Path) -> None:
    recipe = based_on(tmp_path, SIZES | {"model_type": "diffllama"}, "tokenizer.strategies=[base]")

    with pytest.raises(
        PreflightError, match=r"'diffllama' is not planned \(its layers attend twice\), only that of"
    ):
        base_shape(recipe)


@pytest.mark.parametrize("kind", ["gpt2", "nemotron", "stablelm", ""])
def test_a_type_that_the_engine_refuses_is_not_planned(kind: str, tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=rf"base\.model: model type .*{kind}.* is not proven to train"):
        base_shape(based_on(tmp_path, SIZES | {"model_type": kind}))


def test_a_type_that_is_trained_but_has_no_formulas_is_refused_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(families(), "newer", Family(model_type="newer"))

    with pytest.raises(
        PreflightError, match="the memory of the model type 'newer' is not planned, only that of"
    ):
        base_shape(based_on(tmp_path, SIZES | {"model_type": "newer"}))


def test_a_layout_that_is_not_proven_for_the_type_is_refused_and_never_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.kit.fake_run import exact_peak

    monkeypatch.setitem(families(), "glm4", replace(families()["glm4"], layouts=SHARD_LAYOUTS))
    shape, work, p5 = of_kind("glm4"), Work(sequence_length=2_048), machine("p5.48xlarge")
    recipe = based_on(
        tmp_path,
        SIZES | {"model_type": "glm4"},
        "pretrain.parallelism={shard: 1, tensor: 8}",
        "pretrain.batch_size=256",
    )

    found = search(shape, work, p5, 1, 256)

    assert {(each.layout.tensor, each.layout.pipeline) for each in found.best} == {(1, 1)}
    assert {each.layout.tensor for each in search(of_kind("llama"), work, p5, 1, 256).best} > {1}
    with pytest.raises(PreflightError, match=r"pretrain\.parallelism\.tensor: 8 is not proven for .* 'glm4'"):
        check_fits(recipe, here=False)
    with pytest.raises(PreflightError, match=r"pretrain\.parallelism\.tensor: 8 is not proven"):
        exact_peak(shape, Layout(tensor=8), work)


def test_a_head_that_config_calls_tied_is_planned_as_a_table_of_its_own(tmp_path: Path) -> None:
    recipe = based_on(tmp_path, SIZES | {"model_type": "llama", "tie_word_embeddings": True})
    assert base_shape(recipe).tied

    places = {"model.embed_tokens.weight": [0, 1], "lm_head.weight": [1, 2]}
    header = {name: {"dtype": "U8", "shape": [1], "data_offsets": place} for name, place in places.items()}
    text = json.dumps(header).encode()
    file = Path(recipe.base.model, "model.safetensors")
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"12")

    assert not base_shape(recipe).tied
