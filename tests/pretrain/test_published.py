"""Tiny replicas of published checkpoints: their config.json as it is, with sizes cut down."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from anadil.artifacts.text_part import text_config
from anadil.artifacts.weight_files import ALONE
from anadil.core.errors import PreflightError
from anadil.model.architecture import check_fit, read_config
from anadil.model.family_table import check_family, is_packed
from anadil.model.tiny import base_model
from anadil.pretrain.run import run
from anadil.recipe.sections import Base
from tests.kit.families import batches, by_layout, by_transformers, make_vocabulary, remember
from tests.kit.marks import matrix, slow
from tests.kit.mxfp4 import pack_experts
from tests.kit.pretraining import losses, make_job, make_recipe

PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "kit/published_configs.json").read_text(encoding="utf-8")
)
"""Written down by hand, but for what only records how a model was made.

Source of the newer ones: defaults of transformers 5.24 (Qwen 3.5 9B and 35B-A3B, Ministral 3 8B, Mistral Small 3.1, OLMo
hybrid), its convert_gemma4_weights.py (Gemma 4), THUDM/slime (Qwen 3.5 27B), NVIDIA-NeMo/Megatron-Bridge (Ministral 3 3B
and 14B), a copy of config.json (LFM2). Mistral Small 3.2 has the base of 3.1.
"""
TEXTS = {name: text_config(config, Path(name)) for name, config in PUBLISHED.items()}
"""Settings of the model that is trained, by checkpoint: `text_config` where there is one."""
REFUSED = [name for name, config in TEXTS.items() if config.get("enable_moe_block")]
TRAINED = [name for name in TEXTS if name not in REFUSED]
LAYERS, HEAD, VOCABULARY = 8, 16, 300
"""Layers hold each pattern of windows and of rotations at least once."""
SMALL = {
    "head_dim": HEAD, "global_head_dim": 2 * HEAD, "num_global_key_value_heads": 1, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "max_window_layers": LAYERS, "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 2, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
BY_LAYER = ("layer_types", "no_rope_layers")


def replica(config: dict[str, Any]) -> dict[str, Any]:
    """The same keys, with few layers of narrow heads, as many to a key as published, and few experts."""
    layers = min(LAYERS, config["num_hidden_layers"])
    shared = config["num_attention_heads"] // config["num_key_value_heads"]
    heads = {"num_attention_heads": 2 * shared, "num_key_value_heads": 2}
    changed = {
        **heads, "num_hidden_layers": layers, "hidden_size": 2 * shared * HEAD, "intermediate_size": 64,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    changed |= {key: value for key, value in SMALL.items() if config.get(key)}
    experts = dict.fromkeys(("num_experts", "num_local_experts"), 2 * config.get("num_experts_per_tok", 0))
    changed |= {key: value for key, value in experts.items() if key in config}
    changed |= {key: config[key][:layers] for key in BY_LAYER if key in config}
    # Numbers of layers, not one for each.
    changed |= {
        key: [each for each in config[key] if each < layers] for key in ("full_attn_idxs",) if key in config
    }
    changed |= {key: number for number, key in enumerate(IDS) if config.get(key) is not None}
    if "long_factor" in (scaling := config.get("rope_scaling") or {}):
        rotated = round(HEAD * config["partial_rotary_factor"]) // 2
        cut = {key: scaling[key][:rotated] for key in ("long_factor", "short_factor")}
        changed["rope_scaling"] = scaling | cut
    return config | changed


def make_replica(folder: Path, name: str) -> None:
    """Weights of a replica beside a tokenizer, with experts packed where config.json says so."""
    config = replica(TEXTS[name])
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    torch.manual_seed(1)
    made: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**plain), dtype=torch.bfloat16)
    remember(made)
    made.save_pretrained(folder)
    if is_packed(config):
        tensors = pack_experts(load_file(folder / ALONE))
        save_file(tensors, folder / ALONE, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "name", [slow(each) if each == "openai/gpt-oss-20b" else matrix(each) for each in TRAINED]
)
def test_a_replica_of_a_published_checkpoint_trains_at_the_default_layout(
    base: Path, tmp_path: Path, name: str
) -> None:
    make_replica(base, name)

    check_family(TEXTS[name], {})
    check_fit(base)
    job = make_job(tmp_path, make_recipe(base, phases=[{"trains": "all", "steps": 1, "lr": 0.001}]))
    run(job)
    plain, given = base_model(Base(model=str(base)), tmp_path / "cache"), batches(1)
    tokenizer = make_vocabulary(tmp_path / "vocabulary")
    expected, gradients = by_transformers(plain, tokenizer, given)
    loss, mine = by_layout(plain, tokenizer, {}, 0, 1, given)

    assert read_config(base).model_type == TEXTS[name]["model_type"]
    assert len(losses(job.out)) == 1
    assert loss == pytest.approx(expected, rel=1e-6)
    assert mine.keys() == gradients.keys()
    for each, gradient in mine.items():
        assert (gradient - gradients[each]).norm() <= 1e-4 * gradients[each].norm(), each


@pytest.mark.parametrize("name", REFUSED)
def test_any_other_is_refused_by_its_type(name: str) -> None:
    with pytest.raises(PreflightError, match="is a mixture of experts that is not supported"):
        check_family(TEXTS[name], {})


def test_each_published_config_is_that_of_a_type_that_transformers_knows() -> None:
    for config in PUBLISHED.values():
        assert AutoConfig.for_model(**config).model_type == config["model_type"]
