"""What vLLM's LoRA loader takes of our adapters.

Source: vLLM, vllm/lora/lora_model.py (`check_unexpected_modules`), vllm/lora/utils.py (`parse_fine_tuned_lora_name`) and
vllm/lora/peft_helper.py.
"""

import json
import re
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.finetune.short_runs import trained
from tests.finetune.test_run import FOREIGN_WARNINGS, ONE_STEP

pytestmark = FOREIGN_WARNINGS

NAME = re.compile(r"base_model\.model\.model\.layers\.\d+\.(?:self_attn|mlp)\.(\w+)\.lora_[AB]\.weight")
EXPECTED = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
"""Modules of a Llama that vLLM puts LoRA into."""


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["none", "control"])
def test_vllm_takes_an_adapter_of_which_no_rows_of_the_embedding_learned(
    rows: str, model_dir: Path, many_chats: Path, tmp_path: Path
) -> None:
    out = trained(model_dir, many_chats, tmp_path / "work", ONE_STEP, f"finetune.trains_embeddings={rows}")

    settings = json.loads((out / "adapter_config.json").read_text())
    with safe_open(out / "adapter_model.safetensors", framework="pt") as file:
        names = list(file.keys())
    unknown = [name for name in names if not NAME.fullmatch(name)]

    assert {found[1] for name in names if (found := NAME.fullmatch(name))} == EXPECTED
    assert {"r", "lora_alpha", "target_modules"} <= settings.keys()
    assert (settings["bias"], settings["modules_to_save"], settings["use_dora"]) == ("none", None, False)
    # The guide says so: these rows are in the merged model, and vLLM has no place for them beside a base.
    assert [name.rpartition(".")[2] for name in unknown] == (
        ["trainable_tokens_delta"] if rows == "control" else []
    )
