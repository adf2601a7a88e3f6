"""The merged model: PEFT's weights, rounded once, written file by file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from anadil.artifacts.base_model import model_config
from anadil.artifacts.weight_files import INDEX
from anadil.core.errors import IntegrityError
from anadil.finetune.write_model import ADAPTER, write_merged, write_trained
from anadil.model.load import load_model, save_model
from tests.finetune.conftest import small_tokenizer
from tests.kit.child import peak_memory
from tests.kit.llama import small_llama

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ROWS = [1, 5, 300]


def write_base(folder: Path, *, tied: bool, dtype: torch.dtype, **sizes: Any) -> Path:
    tokenizer = small_tokenizer()
    model = small_llama(vocab_size=len(tokenizer), tie_word_embeddings=tied, **sizes)
    tokenizer.save_pretrained(folder.parent / "tokenizer")
    save_model(model, folder.parent / "tokenizer", folder, dtype)
    return folder


def write_adapter(base: Path, folder: Path, **settings: Any) -> Path:
    """An adapter whose every number was moved, as training would."""
    model = load_model(base)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=MATRICES, task_type="CAUSAL_LM", **settings)
    adapted = get_peft_model(model, config)
    torch.manual_seed(1)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    adapted.save_pretrained(folder)
    return folder


def merged_by_peft(base: Path, adapter: Path, out: Path, dtype: torch.dtype) -> Path:
    model = PeftModel.from_pretrained(load_model(base, torch.float32), adapter)
    save_model(model.merge_and_unload(safe_merge=True), base, out, dtype)
    return out


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}


def rows_of(tied: bool) -> dict[str, list[int]]:
    return {"embed_tokens": ROWS} if tied else {"embed_tokens": ROWS, "lm_head": ROWS}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "settings",
    [{}, {"use_rslora": True}, {"use_dora": True}, {"use_dora": True, "use_rslora": True, "rows": True}],
)
def test_weights_and_settings_are_those_of_pefts_merge_rounded_once(
    tmp_path: Path, tied: bool, dtype: torch.dtype, settings: dict[str, Any]
) -> None:
    rows = {"trainable_token_indices": rows_of(tied)} if settings.get("rows") else {}
    kinds = {name: value for name, value in settings.items() if name != "rows"}
    base = write_base(tmp_path / "base", tied=tied, dtype=dtype)
    adapter = write_adapter(base, tmp_path / "adapter", **kinds, **rows)
    expected = merged_by_peft(base, adapter, tmp_path / "peft", dtype)

    write_merged(base, adapter, tmp_path / "ours")

    ours, theirs = weights(tmp_path / "ours"), weights(expected)
    assert sorted(ours) == sorted(theirs)
    assert ("lm_head.weight" in ours) != tied
    assert {each.dtype for each in ours.values()} == {dtype}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(ours[name], weights(base)[name])
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / "ours" / name).read_text()) == json.loads((expected / name).read_text())


def test_tied_weights_that_the_base_stores_twice_are_written_once(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", tied=True, dtype=torch.float32)
    stored = weights(base)
    twice = {**stored, "lm_head.weight": stored["model.embed_tokens.weight"].clone()}
    save_file(twice, base / "model.safetensors", {"format": "pt"})
    adapter = write_adapter(base, tmp_path / "adapter", trainable_token_indices=rows_of(True))

    write_merged(base, adapter, tmp_path / "ours")

    model: Any = load_model(tmp_path / "ours")
    assert "lm_head.weight" not in weights(tmp_path / "ours")
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_a_head_that_config_calls_tied_is_merged_as_it_was_loaded(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", tied=False, dtype=torch.float32)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    adapter = write_adapter(base, tmp_path / "adapter", trainable_token_indices=rows_of(False))
    expected = merged_by_peft(base, adapter, tmp_path / "peft", torch.float32)

    write_merged(base, adapter, tmp_path / "ours")

    ours, theirs = weights(tmp_path / "ours"), weights(expected)
    assert torch.equal(ours["lm_head.weight"], theirs["lm_head.weight"])
    assert not model_config(tmp_path / "ours")["tie_word_embeddings"]


def test_many_files_hold_what_one_does_and_load(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", tied=True, dtype=torch.float32)
    adapter = write_adapter(base, tmp_path / "adapter")
    write_merged(base, adapter, tmp_path / "one")

    write_merged(base, adapter, tmp_path / "many", shard_bytes=20_000)

    files = sorted((tmp_path / "many").glob("*.safetensors"))
    index = json.loads((tmp_path / "many" / INDEX).read_text())
    whole = weights(tmp_path / "one")
    assert len(files) > 3
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in whole.values())
    loaded: Any = load_model(tmp_path / "many").state_dict()
    assert all(torch.equal(loaded[name], each) for name, each in whole.items())


def test_a_model_of_which_all_weights_learned_is_rounded_to_the_precision_of_its_base(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", tied=True, dtype=torch.bfloat16)
    trained: Any = load_model(base, torch.float32)
    for parameter in trained.parameters():
        parameter.data += 0.01
    trained.save_pretrained(tmp_path / "checkpoint")
    save_model(load_model(tmp_path / "checkpoint"), base, tmp_path / "expected", torch.bfloat16)

    write_trained(tmp_path / "checkpoint", base, tmp_path / "ours")

    ours, theirs = weights(tmp_path / "ours"), weights(tmp_path / "expected")
    assert sorted(ours) == sorted(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert model_config(tmp_path / "ours") == model_config(tmp_path / "expected")


def test_an_adapter_of_another_model_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", tied=True, dtype=torch.float32)
    deeper = write_base(tmp_path / "deeper", tied=True, dtype=torch.float32, num_hidden_layers=3)
    adapter = write_adapter(deeper, tmp_path / "adapter")

    with pytest.raises(IntegrityError, match=r"made for another model: .* no matrix for 14 of its tensors"):
        write_merged(base, adapter, tmp_path / "ours")
    file = adapter / ADAPTER
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(IntegrityError, match="no header of safetensors"):
        write_merged(base, adapter, tmp_path / "ours")


MEMORY = """
import sys
from pathlib import Path
from anadil.finetune import write_model

def anonymous_bytes():
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith("RssAnon"))

def added(*given):
    result = real(*given)
    seen.append(anonymous_bytes())
    return result

base, adapter, out = map(Path, sys.argv[1:4])
seen, real, write_model._Adapter.added = [], write_model._Adapter.added, added
before = anonymous_bytes()
write_model.write_merged(base, adapter, out)
print(max(seen) - before)
whole = [merge.read_rows(each) for each in merge.SafetensorsFiles(base).stored.values()]
print(anonymous_bytes() - before)
"""
"""Prints the most memory that no file backs; in a process of its own, where nothing freed before is used again."""


@pytest.mark.matrix
def test_memory_is_that_of_one_matrix_and_not_of_the_model(tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 1_024, "num_hidden_layers": 16}
    base = write_base(tmp_path / "base", tied=True, dtype=torch.float32, **sizes)
    adapter = write_adapter(base, tmp_path / "adapter")
    size = (base / "model.safetensors").stat().st_size

    merging, holding = map(int, peak_memory(MEMORY, base, adapter, tmp_path / "out")[1].splitlines())

    assert size > 100_000_000
    assert merging < size / 4  # one matrix in FP32 with its product, and what malloc keeps
    assert holding > size / 2  # the figure is a measurement
