"""A saved config.json says to transformers 4, to transformers 5 and to what reads the keys of either the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from anadil.model.family_table import model_types
from anadil.model.spellings import version_4_keys, write_both_spellings

LLAMA_3 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
FACTORS = {"short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}


GEMMA_3 = {
    "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
    "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
}
PLAIN = {"rope_theta": 1e4, "rope_type": "default"}
LONG = {"rope_type": "longrope", **FACTORS}
BEFORE = "original_max_position_embeddings"


@pytest.mark.parametrize(
    ("kind", "rotation", "expected"),
    [
        ("llama", {"rope_theta": 5e5, **LLAMA_3}, {"rope_theta": 5e5, "rope_scaling": LLAMA_3}),
        ("qwen3", PLAIN, {"rope_theta": 1e4, "rope_scaling": None}),
        (
            "gemma3_text",
            GEMMA_3,
            {
                "rope_theta": 1e6,
                "rope_local_base_freq": 1e4,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
        ),
        (
            "glm4",
            {**PLAIN, "partial_rotary_factor": 0.5},
            {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_scaling": None},
        ),
        (
            "gpt_neox",
            {**PLAIN, "partial_rotary_factor": 0.25},
            {"rotary_emb_base": 1e4, "rotary_pct": 0.25, "rope_scaling": None},
        ),
        (
            "phi3",
            {"rope_theta": 1e4, "partial_rotary_factor": 1.0, BEFORE: 4096, **LONG},
            {
                "rope_theta": 1e4,
                "partial_rotary_factor": 1.0,
                "rope_scaling": {"type": "longrope", **FACTORS},
            },
        ),
        (
            "llama",
            {"rope_theta": 1e4, BEFORE: 32, **LONG},
            {"rope_theta": 1e4, BEFORE: 32, "rope_scaling": {BEFORE: 32, **LONG}},
        ),
        ("unheard_of", None, {}),
    ],
)
def test_version_4_finds_precision_and_rotation_under_its_own_keys(
    kind: str, rotation: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    config = {"model_type": kind, "rope_parameters": rotation}

    assert version_4_keys(config) == expected
    assert version_4_keys({**config, "dtype": "bfloat16"}) == {**expected, "torch_dtype": "bfloat16"}


SCALED: dict[str, dict[str, Any]] = {
    "gemma3_text": {"rope_parameters": GEMMA_3},
    "llama": {"rope_parameters": {"rope_theta": 5e5, **LLAMA_3}},
    "phi3": {"hidden_size": 16, "num_attention_heads": 4, "rope_parameters": {"rope_theta": 1e4, **LONG}},
}


@pytest.mark.parametrize(("kind", "changes"), [*((kind, {}) for kind in model_types()), *SCALED.items()])
def test_version_5_reads_from_both_spellings_what_it_wrote(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    config = AutoConfig.for_model(kind, dtype="bfloat16", architectures=["Kept"], **changes)
    config.save_pretrained(tmp_path)
    alone = AutoConfig.from_pretrained(tmp_path).to_dict()

    write_both_spellings(tmp_path / "config.json")

    read = AutoConfig.from_pretrained(tmp_path).to_dict()
    read["rope_parameters"].pop("type", None)  # Phi-3's, which stays beside `rope_type`
    alone["rope_parameters"].pop("type", None)  # Ministral 3 writes both itself
    assert {key: read[key] for key in alone} == alone
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["torch_dtype"] == written["dtype"] == "bfloat16"
    assert {"rope_theta", "rotary_emb_base"} & set(written), "some key of version 4"
    assert written["architectures"] == ["Kept"]
