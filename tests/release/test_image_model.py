"""A model of text and images that is one again: the trained text model in its base."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from anadil.artifacts import artifact
from anadil.artifacts.text_part import text_name
from anadil.cli import main
from anadil.pretrain.checkpoint.hf_export import export_checkpoints
from anadil.runtime.cache_key import BASE_FILES, base_files
from tests.kit import families as kit
from tests.kit.marks import slow
from tests.kit.pretraining import make_tokenizer
from tests.kit.transformers_4 import python_with_4, read_by_4
from tests.pretrain.checkpoint.test_hf_export import trained

KINDS = sorted(kit.WRAPPERS)
IDS = torch.arange(11, 60)[None]
NUM_IDS = 320
PROCESSOR = '{"image_processor_type": "Gemma3ImageProcessor"}'


def make_run(folder: Path, kind: str, change: Callable[[Path], object] = lambda _: None) -> Path:
    """A model artifact with a larger vocabulary than its base, and an adapter artifact of it, below a root."""
    base = folder / "base"
    if kind in kit.WRAPPERS:
        kit.make_wrapper(base, kind)
    else:
        kit.make_family(base, kind)
    make_tokenizer(base, 300)
    (base / "preprocessor_config.json").write_text(PROCESSOR)
    (base / "LICENSE").write_text("Terms of the base")
    change(base)
    tokenizer = make_tokenizer(folder / "tokenizer", NUM_IDS)
    recipe: dict[str, object] = {"base": {"model": str(base)}}
    export_checkpoints([trained(base, folder)], base, tokenizer, folder / "root/model/made")
    artifact.seal(folder / "root/model/made", kind="model", origin=base_files(str(base)), recipe=recipe)
    manifest = artifact.read_manifest(str(folder / "root/model/made"))
    assert manifest is not None
    assert BASE_FILES in manifest.origin
    shutil.copytree(folder / "root/model/made", folder / "root/adapter/made/merged")
    (folder / "root/adapter/made/merged/manifest.json").unlink()
    origin = {"input model": manifest.digest}
    artifact.seal(folder / "root/adapter/made", kind="adapter", origin=origin, recipe=recipe)
    return folder / "root/adapter/made"


def export(uri: Path, out: Path, *options: str) -> int:
    return main.main(["export", str(uri), "--with-images", "--out", str(out), *options])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return torch.as_tensor(model.eval()(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits)


@pytest.mark.parametrize("kind", ["gemma3", slow("gemma4"), slow("mistral3"), slow("qwen3_5")])
def test_trained_text_is_written_back_and_nothing_else_changes(tmp_path: Path, kind: Any) -> None:
    adapter, out = make_run(tmp_path, kind), tmp_path / "out"

    assert export(adapter, out) == 0

    whole: Any = AutoModelForImageTextToText.from_pretrained(out)
    expected = logits(AutoModelForCausalLM.from_pretrained(adapter / "merged"))
    assert (logits(whole) - expected).abs().max() < 1e-4
    assert whole.config.text_config.vocab_size == NUM_IDS
    before, after = load_file(tmp_path / "base/model.safetensors"), load_file(out / "model.safetensors")
    others = [name for name in before if not text_name(name)]
    assert others
    assert {name for name in after if not text_name(name)} == {*others}
    assert {name for name in after if text_name(name)} == {name for name in before if text_name(name)}
    assert all(torch.equal(before[name].view(torch.uint8), after[name].view(torch.uint8)) for name in others)
    assert (out / "preprocessor_config.json").read_text() == PROCESSOR
    assert (out / "LICENSE").is_file()
    assert (out / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer/tokenizer.json").read_bytes()
    # The text model of what was written is the one that was trained.
    assert main.main(["export", str(out), "--out", str(tmp_path / "copy"), "--precision", "fp32"]) == 0


@pytest.mark.slow
def test_transformers_4_reads_it_as_5_does(tmp_path: Path) -> None:
    folders = []
    for kind in ("gemma3", "mistral3"):
        folders.append(tmp_path / kind / "out")
        assert export(make_run(tmp_path / kind, kind), folders[-1]) == 0

    read_by_4(python_with_4(), folders, IDS, tmp_path)

    for folder in folders:
        by_4 = torch.load(folder / "logits.pt", weights_only=True)
        assert (logits(AutoModelForImageTextToText.from_pretrained(folder)) - by_4).abs().max() < 1e-4


def test_ids_of_images_follow_their_tokens_and_a_precision_is_that_of_the_text(tmp_path: Path) -> None:
    def set_ids(base: Path) -> None:
        content = json.loads((base / "tokenizer.json").read_text())
        ids = {each["content"]: each["id"] for each in content["added_tokens"]}
        config = json.loads((base / "config.json").read_text())
        config |= {"image_token_index": max(ids.values()), "boi_token_index": 40_000}
        (base / "config.json").write_text(json.dumps(config))

    adapter = make_run(tmp_path, "gemma3", set_ids)

    assert export(adapter, tmp_path / "out", "--precision", "bf16") == 0

    config = json.loads((tmp_path / "out/config.json").read_text())
    # The tokenizer of 320 tokens has its special ones 20 rows later.
    before = json.loads((tmp_path / "base/config.json").read_text())["image_token_index"]
    assert (config["image_token_index"], config["boi_token_index"]) == (before + 20, 40_000)
    dtypes = {
        bool(text_name(name)): each.dtype
        for name, each in load_file(tmp_path / "out/model.safetensors").items()
    }
    assert dtypes == {True: torch.bfloat16, False: torch.float32}
    assert (config["dtype"], config["text_config"]["dtype"]) == ("bfloat16", "bfloat16")


def set_config(**keys: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "base/config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | keys))

    return change


def change_vision(folder: Path) -> None:
    file = folder / "base/model.safetensors"
    tensors = load_file(file)
    name = next(each for each in tensors if each.startswith("vision"))
    save_file(tensors | {name: tensors[name] + 1}, file)


def reseal(folder: Path, change: Callable[[Path], object]) -> None:
    """Change the base as the run has seen it, too."""
    change(folder)
    model = folder / "root/model/made"
    (model / "manifest.json").unlink()
    base = folder / "base"
    artifact.seal(model, kind="model", origin=base_files(str(base)), recipe={"base": {"model": str(base)}})
    manifest = artifact.read_manifest(str(model))
    assert manifest is not None
    adapter = folder / "root/adapter/made"
    (adapter / "manifest.json").unlink()
    artifact.seal(
        adapter,
        kind="adapter",
        origin={"input model": manifest.digest},
        recipe={"base": {"model": str(base)}},
    )


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "base"), 3, r"its base, the directory .*base, has gone, put it back"),
        (change_vision, 5, r"its files have changed since .* was trained from them \(\w{12} now"),
        (lambda folder: shutil.rmtree(folder / "root/model"), 3, r"nothing says which files of its base .* were read"),
        (lambda folder: reseal(folder, set_config(image_token_index=310)), 3, "id 310 is its token '.*', and .* image_token_i"),
        (lambda folder: reseal(folder, set_config(text_config={**kit.SIZES, "model_type": "gemma3_text", "hidden_size": 64})),
         3, r"hidden_size is 32, and the text model of .*base has 64"),
        (lambda folder: reseal(folder, set_config(model_type="gemma3_text")), 3, "is no model of text and images"),
    ],
    ids=["gone", "changed", "unknown", "collision", "sizes", "text"],
)  # fmt: skip
def test_what_cannot_be_an_image_model_again_is_refused_and_leaves_nothing(
    change: Callable[[Path], object], code: int, message: str, tmp_path: Path, capsys: Any
) -> None:
    adapter = make_run(tmp_path, "gemma3")
    change(tmp_path)

    assert export(adapter, tmp_path / "out") == code

    captured = capsys.readouterr().err
    assert re.search(message, captured), captured
    assert "export without --with-images for the text model alone" in captured
    assert not (tmp_path / "out").exists()


def test_a_directory_names_no_base_and_gguf_has_no_images(tmp_path: Path, capsys: Any) -> None:
    kit.make_family(tmp_path / "model", "llama")
    make_tokenizer(tmp_path / "model", 300)

    assert export(tmp_path / "model", tmp_path / "out") == 3
    assert export(tmp_path / "model", tmp_path / "out", "--format", "gguf") == 2

    captured = capsys.readouterr().err
    assert "names no base, give a model, merged or adapter artifact" in captured
    assert "--with-images: only with --format hf" in captured
