"""A merge is the formula, to the bit: tied and untied, in each vocabulary that a model can have."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.merge import weights as weights_module
from anadil.model import safetensors_files
from anadil.model.load import load_model, load_tokenizer
from anadil.recipe.load import parse_recipe
from anadil.runtime.execute import execute
from tests.kit.child import peak_memory
from tests.kit.marks import matrix
from tests.kit.merging import STRATEGIES, TEMPLATE, Models, by_hand, make_models, sparse_models, tensors_of
from tests.kit.pretraining import in_child

POINTS = [(0.0, 0.0), (0.25, 0.0), (0.0, 1.0), (0.3, 0.7), (1.0, 0.0)]
"""Shares of the base, and weights of the chat vector."""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A model with more tokens than its base; not to be changed."""
    return make_models(tmp_path_factory.mktemp("extended"), "extend", tied=False)


@pytest.mark.parametrize(
    ("strategy", "kind", "tied"),
    [
        ("base", "llama", True),
        ("extend", "gemma3_text", True),
        ("replace", "qwen3", False),
        ("surgery", "llama", False),
        ("extend", "mixtral", False),
        ("base", "gemma4_text", True),
        *(matrix(strategy, "llama", tied) for strategy in STRATEGIES for tied in (True, False)),
        matrix("surgery", "gpt_neox", False),
    ],
)
def test_a_merge_is_what_plain_torch_gives_to_the_bit(
    tmp_path: Path, strategy: str, kind: str, tied: bool
) -> None:
    models = make_models(tmp_path, strategy, kind=kind, tied=tied)
    ends = models.open(chat=True)

    for place, (base_share, weight) in enumerate(POINTS):
        ends.write(tmp_path / f"{place}", base_share, [weight])

        merged, expected = tensors_of(tmp_path / f"{place}"), by_hand(models, base_share, weight)
        assert merged.keys() == expected.keys()
        assert [name for name in merged if not torch.equal(merged[name], expected[name])] == []
    load_model(tmp_path / "3")


def test_blocks_and_files_change_no_bit_and_a_second_writing_no_byte(
    extended: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extended.open(chat=True).write(tmp_path / "whole", 0.3, [0.7])
    monkeypatch.setattr(weights_module, "BLOCK_BYTES", 1_000)

    for name in ("blocks", "again"):
        extended.open(chat=True).write(tmp_path / name, 0.3, [0.7])

    first, second = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("whole", "blocks")
    )
    assert first == second
    assert second == {file.name: file.read_bytes() for file in (tmp_path / "again").iterdir()}


@pytest.mark.parametrize("kind", ["llama", "qwen3_5_text", "qwen3_moe"])
def test_a_loaded_model_is_filled_with_what_is_written(extended: Models, tmp_path: Path, kind: str) -> None:
    models = extended if kind == "llama" else make_models(tmp_path / "models", "extend", kind=kind)
    ends = models.open(chat=True)
    ends.write(tmp_path / "out", 0.3, [0.7])
    model: Any = load_model(models.model)

    ends.load_into(model, 0.3, [0.7])

    written: Any = load_model(tmp_path / "out")
    assert all(torch.equal(each, written.state_dict()[name]) for name, each in model.state_dict().items())
    loaded = {name: each for name, each in model.state_dict().items() if name in ends.names}
    assert all(torch.equal(ends.tensor(name, 0.3, [0.7]), each) for name, each in loaded.items())


def test_a_chat_vector_brings_template_and_control_rows_and_none_without_weight(
    extended: Models, tmp_path: Path
) -> None:
    ends = extended.open(chat=True)

    ends.write(tmp_path / "chat", 0.0, [0.5])
    ends.write(tmp_path / "plain", 0.5, [0.0])

    assert load_tokenizer(tmp_path / "chat").chat_template == TEMPLATE
    assert load_tokenizer(tmp_path / "plain").chat_template == load_tokenizer(extended.model).chat_template
    ours, its = (load_tokenizer(each).get_vocab() for each in (extended.model, extended.instruct))
    assert ends.vectors[0].control_tokens == ["<|im_start|>", "<|im_end|>"]
    for token in ("<|im_start|>", "<|im_end|>"):
        for table in ("model.embed_tokens.weight", "lm_head.weight"):
            row = tensors_of(tmp_path / "chat")[table][ours[token]]
            assert torch.equal(row, tensors_of(extended.instruct)[table][its[token]])
    assert json.loads((tmp_path / "chat/config.json").read_text())["vocab_size"] == len(extended.rows or [])


def test_a_killed_merge_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    models = make_models(tmp_path / "models")
    artifact.seal(shutil.copytree(models.model, tmp_path / "model"), kind="model", origin={})
    recipe = parse_recipe(
        f"base: {{model: {models.base}}}\nmerge: {{base_share: 0.5}}\nstorage: {{root: {tmp_path}}}\ntracking: {{uri: 'off'}}",
        "r.yaml",
    )
    inputs = {"model": str(tmp_path / "model"), "tokenizer": str(models.tokenizer)}
    out, written = tmp_path / "out", []

    def merge() -> None:
        execute(STAGES["merge"], recipe, inputs, (), str(out))

    def merge_until_the_fifth_tensor() -> None:
        real = safetensors_files._bytes

        def counted(*given: object) -> object:
            written.append(given)
            if len(written) == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given)  # type: ignore[arg-type]

        safetensors_files._bytes = counted  # type: ignore[assignment]
        merge()

    code = os.waitstatus_to_exitcode(os.waitpid(in_child(merge_until_the_fifth_tensor), 0)[1])
    left = [path.name for path in tmp_path.rglob("*.safetensors") if "out" in str(path)]
    assert code == -signal.SIGKILL
    assert left  # it was killed while it wrote
    assert not out.exists()

    merge()

    assert artifact.finished_manifest(str(out), "merged").files.keys() >= {"model.safetensors", "merge.json"}
    half = {
        name: 0.5 * each + 0.5 * tensors_of(models.base)[name]
        for name, each in tensors_of(models.model).items()
    }
    assert all((each == half[name]).all() for name, each in tensors_of(out).items())


SIZES = {"vocab_size": 32_000, "hidden_size": 1_024, "intermediate_size": 4_096, "num_attention_heads": 16}
MERGE = """
import sys
from anadil.merge import weights
base, instruct, model, tokenizer, out = map(Path, sys.argv[1:6])
weights.BLOCK_BYTES = 4 * 1024**2
ends = weights.Ends.open(model, base, tokenizer, add=[(instruct, base)])
print(ends.write(out, 0.25, [0.7])["bytes"])
"""
MOST_MORE_MIB = 40
"""Measured: 0 to 15 MiB, of malloc."""


@pytest.mark.slow
def test_a_model_of_many_layers_takes_the_memory_of_one_of_few(tmp_path: Path) -> None:
    peaks, sizes = [], []
    for layers in (1, 5):
        models = sparse_models(tmp_path / f"{layers}", **SIZES, num_hidden_layers=layers)
        folders = (models.base, models.instruct, models.model, models.tokenizer, tmp_path / f"{layers}/out")
        peak, printed = peak_memory("from pathlib import Path\n" + MERGE, *folders)
        peaks.append(peak)
        sizes.append(int(printed.splitlines()[-1]) / 1024**2)

    assert sizes[1] - sizes[0] > 3 * MOST_MORE_MIB
    assert peaks[1] - peaks[0] < MOST_MORE_MIB
