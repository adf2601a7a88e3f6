"""The adapter of every family reaches all of its linear layers, and merging gives what model and adapter give."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from anadil.core.errors import PreflightError
from anadil.finetune.learning import adapter_config, linear_layers, load_for_training
from anadil.finetune.write_model import write_merged
from anadil.model.family_table import model_types
from anadil.model.load import load_model
from anadil.recipe.finetune import EmbeddingRows, Finetune
from anadil.recipe.load import load_recipe
from tests.finetune.conftest import small_tokenizer
from tests.kit.families import make_family
from tests.kit.marks import matrix, slow

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

USUAL = ("gpt_neox", "phi3", "starcoder2")
"""Types whose linear layers have other names than a Llama's."""
UNLIKE = ("bitnet", "gemma3_text", "lfm2", "olmo2", "qwen3_5_text")
"""Types with layers of another kind or order; all others are built of a Llama's."""
DORA = {"dora": True, "rslora": True}
CASES = [
    case(kind, settings)
    for settings in ({}, DORA)
    for kind in model_types()
    for case in [pytest.param if kind in USUAL else slow if kind in UNLIKE and not settings else matrix]
]


def write_adapter(base: Path, folder: Path, rows: EmbeddingRows, **settings: Any) -> Any:
    """PEFT's model with an adapter whose every number was moved, as training would."""
    model, tokenizer = load_model(base), small_tokenizer()
    config = adapter_config(Finetune(rank=4, alpha=8, dropout=0, **settings), rows, model, tokenizer)
    assert config is not None
    adapted = get_peft_model(model, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    adapted.save_pretrained(folder)
    return PeftModel.from_pretrained(load_model(base), folder).eval()


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_all_linear_layers_learn_and_are_merged(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    tokenizer = small_tokenizer()
    # A type may bring tokens of its own to its tokenizer, such as Qwen.
    base = make_family(tmp_path / "base", kind, vocab_size=len(tokenizer) + 8)
    tokenizer.save_pretrained(base)

    adapted = write_adapter(base, tmp_path / "adapter", "all", **settings)
    write_merged(base, tmp_path / "adapter", tmp_path / "merged")

    plain = load_model(base)
    linear = {name for name, each in plain.named_modules() if isinstance(each, nn.Linear)} - {"lm_head"}
    reached = {
        name.split(".lora_A")[0]
        for name, _ in adapted.base_model.model.named_modules()
        if name.endswith("lora_A")
    }
    assert reached == linear
    ids = torch.arange(24)[None] * 7
    with torch.no_grad():
        theirs, ours = adapted(input_ids=ids).logits, load_model(tmp_path / "merged")(input_ids=ids).logits
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_recomputation_stores_no_second_keys(tmp_path: Path) -> None:
    base = make_family(tmp_path / "base", "gemma4_text")
    job: Any = SimpleNamespace(recipe=load_recipe("smoke", ["finetune.trains=all"]), inputs={"model": base})
    model: Any = load_for_training(job, torch.device("cpu")).train()
    model.gradient_checkpointing_enable()
    shared: list[Any] = []
    model.base_model.layers[0].self_attn.register_forward_pre_hook(
        lambda _module, _args, keywords: shared.append(keywords["shared_kv_states"]), with_kwargs=True
    )
    ids = torch.arange(24)[None] * 7

    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    first = dict(shared[0])
    loss.backward()

    assert len(shared) == 2
    assert set(first) == {"sliding_attention", "full_attention"}
    assert all(shared[0][kind] is states for kind, states in first.items())


def test_matrices_of_another_kind_are_named_and_a_model_of_them_alone_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    small = AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=2, vocab_size=32, n_positions=16)
    model: Any = AutoModelForCausalLM.from_config(small)
    with pytest.raises(PreflightError, match=r"finetune\.trains: a gpt2 model has no linear layers.*to all"):
        linear_layers(model)

    model.transformer.h[0].mlp = nn.Linear(8, 8)
    with caplog.at_level(logging.WARNING):
        assert linear_layers(model) == ["mlp"]
    assert (
        "leaves out 3 matrices that are not linear layers, such as transformer.h.0.attn.c_attn.weight"
        in caplog.text
    )
