"""Every type that is written as GGUF: logits held against transformers', and what would be computed otherwise refused."""

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from anadil.core.errors import PreflightError
from anadil.model.family_table import families
from anadil.release.export.gguf_file import write_gguf
from tests.kit.families import make_family
from tests.kit.llama_3 import make_tokenizer
from tests.kit.llama_cpp import opened
from tests.kit.marks import matrix, slow

TYPES = sorted(name for name, each in families().items() if each.gguf)
WRITERS = {each.gguf.architecture: name for name, each in sorted(families().items()) if each.gguf}.values()
"""One type of each architecture of llama.cpp; the others of an architecture are written alike."""
GELU = ("gemma", "gemma3_text", "starcoder2")
"""Of which llama.cpp looks the activation up in a table of FP16."""
WINDOW = ["sliding_attention", "full_attention"]
FULL_ONLY = {"sliding_window": None, "layer_types": ["full_attention"] * 4}
NEEDED: dict[str, dict[str, Any]] = {"exaone4": FULL_ONLY}
"""What a type is asked for that llama.cpp computes in part only."""


def scaled(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **more}}


YARN = scaled("yarn", original_max_position_embeddings=64)
LLAMA_3 = scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
LOCAL = {"rope_type": "default", "rope_theta": 2e3}


def both(full: dict[str, Any], local: dict[str, Any] = LOCAL) -> dict[str, Any]:
    return {"rope_parameters": {"full_attention": full["rope_parameters"], "sliding_attention": local}}


def make(folder: Path, kind: str, **changes: Any) -> Path:
    directory = make_family(folder / "model", kind, vocab_size=888, **{**NEEDED.get(kind, {}), **changes})
    for file in make_tokenizer(folder / "tokenizer").iterdir():
        shutil.copy(file, directory / file.name)
    return directory


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen3", {**YARN, "head_dim": 16}),
        ("gemma3_text", {"sliding_window": 16}),
        *((slow if kind in WRITERS else matrix)(kind, {}) for kind in TYPES),
        matrix("gemma3_text", {"layer_types": [*WINDOW[:1] * 2, WINDOW[1], WINDOW[0]], "sliding_window": 16}),
        matrix("gemma3_text", {"layer_types": WINDOW[:1] * 4, "sliding_window": 16}),
        matrix("gemma3_text", {"layer_types": WINDOW[1:] * 4}),
        slow("gemma3_text", {**both(YARN), "sliding_window": 16}),
        slow("gemma3_text", {"final_logit_softcapping": 3.0, "tie_word_embeddings": False, "head_dim": 16}),
        matrix("gemma3_text", {"num_hidden_layers": 62, "layer_types": WINDOW * 31, "head_dim": 16}),
        slow("olmo3", {"sliding_window": 16, "layer_types": [*WINDOW[:1] * 3, WINDOW[1]]}),
        matrix("olmo3", both(YARN, {**LOCAL, "rope_theta": 1e4})),
        slow("olmo", {"clip_qkv": 0.5, **scaled("linear")}),
        slow("phi3", {"rope_parameters": {**LOCAL, "partial_rotary_factor": 0.5}, "num_key_value_heads": 1}),
        matrix("glm4", {"attention_bias": False, "head_dim": 16}),
        matrix("mistral", {**LLAMA_3, "head_dim": 16, "sliding_window": None}),
        slow("granite", {**LLAMA_3, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        slow("qwen2", {**YARN, "num_key_value_heads": 4, "tie_word_embeddings": True}),
        matrix("qwen3", {**scaled("linear"), "num_key_value_heads": 1}),
        matrix("smollm3", {"tie_word_embeddings": False, **YARN}),
        matrix("seed_oss", {"attention_bias": False, "head_dim": 16}),
        matrix("ernie4_5", {"tie_word_embeddings": False, "head_dim": 16}),
    ],
)
def test_llama_cpp_computes_the_logits_of_transformers(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    directory = make(tmp_path, kind, **changes)
    ids = torch.randint(0, 880, (100,), generator=torch.Generator().manual_seed(4))
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        ours = model(input_ids=ids[None]).logits[0].numpy()

    write_gguf(directory, tmp_path / "m.gguf", name="test")
    with opened(tmp_path / "m.gguf") as loaded:
        theirs = loaded.logits(ids.tolist())

    assert np.abs(ours).max() > 1
    assert np.abs(ours - theirs).max() < (1e-2 if kind in GELU else 1e-4)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("bitnet", {}, "model type 'bitnet' is not written as GGUF, only arcee, .*, qwen3"),
        ("qwen3", {"attention_bias": True}, "attention_bias is True, and llama.cpp's qwen3 computes False"),
        ("qwen2", LLAMA_3, "rotation scaled by 'llama3' .* only default, linear, yarn"),
        (
            "llama",
            {"rope_parameters": YARN["rope_parameters"] | {"attention_factor": 2.0}},
            "'yarn' with att",
        ),
        ("llama", scaled("dynamic"), "rotation scaled by 'dynamic'"),
        ("olmo2", {"head_dim": 16}, "head_dim is 16, and llama.cpp's olmo2 has only hidden size / heads"),
        ("olmo2", {"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ("olmo3", both(scaled("default")), "layers with a window have a base of their own"),
        ("gemma3_text", {"layer_types": [*WINDOW, WINDOW[1], WINDOW[0]]}, "do not alternate by one number"),
        ("gemma3_text", both(scaled("default"), scaled("linear")["rope_parameters"]), "scaled by 'linear'"),
        ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}, "llama.cpp's smollm3 rotates three of four layers"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(
    kind: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    directory = make(tmp_path, kind, **changes)

    with pytest.raises(PreflightError, match=rf"{reason}.*; export with --format hf"):
        write_gguf(directory, tmp_path / "m.gguf", name="test")

    assert not (tmp_path / "m.gguf").exists()


def test_a_window_that_llama_cpp_does_not_know_is_the_longest_context(tmp_path: Path) -> None:
    directory = make(tmp_path, "mistral", sliding_window=100)

    write_gguf(directory, tmp_path / "m.gguf", name="test")

    field = gguf.GGUFReader(tmp_path / "m.gguf").fields["llama.context_length"]
    assert field.contents() == 100
