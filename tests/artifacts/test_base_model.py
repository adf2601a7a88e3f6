import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from anadil.artifacts import base_model
from anadil.artifacts.base_model import (
    CHAT_TEMPLATE,
    LLAMA_3_SPECIALS,
    base_tokenizer,
    model_config,
    read_tokenizer,
    tiny_source,
    tiny_text,
    tokenizer_config,
)
from anadil.core.errors import DataError, IntegrityError, PreflightError
from anadil.recipe.sections import Base
from anadil.runtime.cache_key import base_files


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_tokenizer(Base(model="tiny"), tmp_path_factory.mktemp("cache"))


def test_the_tiny_text_is_prose_and_the_same_with_every_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    tiny_text.cache_clear()

    text = tiny_text()

    assert (len(text), tiny_source()[:16]) == (311_622, "cad0542f2284f745")
    assert "::=" not in text
    assert "****" not in text
    assert sum(char.isalpha() or char.isspace() for char in text) > 0.9 * len(text)


def test_the_tiny_tokenizer_has_4096_ordinary_tokens_and_the_special_ones_after_them(tiny: Path) -> None:
    tokenizer = read_tokenizer(tiny)

    assert tokenizer.get_vocab_size() == 4096 + len(LLAMA_3_SPECIALS)
    assert [tokenizer.token_to_id(token) for token in LLAMA_3_SPECIALS] == list(range(4096, 4102))
    assert all(
        token.special and not token.normalized for token in tokenizer.get_added_tokens_decoder().values()
    )


def test_the_tiny_tokenizer_is_made_once_and_always_has_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    before = (tiny / "tokenizer.json").stat().st_mtime_ns

    again = base_tokenizer(Base(model="tiny"), tiny.parent)
    elsewhere = base_tokenizer(Base(model="tiny"), tmp_path)

    assert again == tiny
    assert (tiny / "tokenizer.json").stat().st_mtime_ns == before
    assert elsewhere.name == tiny.name
    assert {file.name: file.read_bytes() for file in elsewhere.iterdir()} == {
        file.name: file.read_bytes() for file in tiny.iterdir()
    }
    assert [path.name for path in tmp_path.iterdir()] == [tiny.name]


def test_of_workers_that_share_a_directory_one_makes_the_tiny_tokenizer(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def train(text: str) -> Tokenizer:
        made.append(text[:9])
        time.sleep(0.5)
        return Tokenizer.from_file(str(tiny / "tokenizer.json"))

    monkeypatch.setattr(base_model, "_train_tiny", train)
    with ThreadPoolExecutor(3) as workers:
        found = list(workers.map(lambda _: base_tokenizer(Base(model="tiny"), tmp_path), range(3)))

    assert len(made) == 1
    assert {each.name for each in found} == {tiny.name}
    assert [path.name for path in tmp_path.iterdir()] == [tiny.name]


def test_transformers_loads_the_tiny_tokenizer_with_its_roles_and_chat_template(tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)

    assert tokenizer.is_fast
    assert tokenizer.bos_token == "<|begin_of_text|>"
    assert tokenizer.eos_token == "<|end_of_text|>"
    assert tokenizer.pad_token == "<|finetune_right_pad_id|>"
    assert tokenizer.chat_template == CHAT_TEMPLATE.read_text(encoding="utf-8")
    ids = tokenizer("Salam, dünya!").input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Salam, dünya!"


def test_control_tokens_written_in_a_document_stay_text(tiny: Path) -> None:
    tokenizer = read_tokenizer(tiny)
    control = {tokenizer.token_to_id(token) for token in LLAMA_3_SPECIALS}

    encoded = tokenizer.encode("sual <|eot_id|> cavab <|begin_of_text|>", add_special_tokens=False)
    batch = tokenizer.encode_batch_fast(["<|eot_id|>", "a<|end_of_text|>b"], add_special_tokens=False)

    assert not control & set(encoded.ids)
    assert not any(control & set(found.ids) for found in batch)
    assert (
        tokenizer.decode(encoded.ids, skip_special_tokens=False) == "sual <|eot_id|> cavab <|begin_of_text|>"
    )


def test_truncation_and_padding_of_a_tokenizer_file_are_dropped_because_they_lose_text(
    tiny: Path, tmp_path: Path
) -> None:
    content = json.loads((tiny / "tokenizer.json").read_text(encoding="utf-8"))
    content["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")

    tokenizer = read_tokenizer(tmp_path)

    assert len(tokenizer.encode("one two three four five six seven eight").ids) > 8


def test_a_gated_model_is_told_with_its_licence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError

    class Gated(GatedRepoError):
        def __init__(self) -> None:
            Exception.__init__(self, "403 Client Error")

    def refuse(*_: object, **__: object) -> None:
        raise Gated

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)

    with pytest.raises(PreflightError, match=r"base\.model: meta/llama is gated; accept its licence"):
        base_tokenizer(Base(model="meta/llama"), tmp_path)


def test_weights_in_folders_of_a_hub_model_are_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils._paths import filter_repo_objects

    names = ["config.json", "model.safetensors", "original/model.safetensors"]
    asked: list[str] = []

    def fetch(_: str, *, allow_patterns: list[str], ignore_patterns: list[str], **__: object) -> str:
        asked.extend(
            filter_repo_objects(names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        )
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)

    base_model.from_hub(Base(model="openai/gpt-oss-20b"), ("config.json", "*.safetensors"))

    assert asked == names[:2]


@pytest.mark.parametrize("name", ["models/mine", "./models/mine", "mine"])
def test_a_directory_that_vanishes_under_a_run_is_not_looked_up_on_the_hub(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fetch(*_: object, **__: object) -> str:
        raise AssertionError("asked the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.setenv(base_model.LOCAL_BASES, "")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny, name)
    base_files(name)
    shutil.rmtree(name)

    with pytest.raises(DataError, match=f"the directory '{name}' has gone since the start"):
        base_tokenizer(Base(model=name), tmp_path)


def test_a_process_that_a_run_starts_knows_that_the_base_was_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(base_model.LOCAL_BASES, "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = (
        "import pathlib; from anadil.artifacts.base_model import base_tokenizer; from anadil.recipe.sections import Base\n"
        "base_tokenizer(Base(model='models/mine'), pathlib.Path('cache'))"
    )
    Path("models/mine").mkdir(parents=True)
    assert base_model.is_local("models/mine")
    Path("models/mine").rmdir()

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "the directory 'models/mine' has gone since the start; put it back" in done.stderr


def test_a_hub_model_that_cannot_be_fetched_says_to_download_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    with pytest.raises(PreflightError, match=r"download it first \(hf download meta-llama/Llama-3.2-1B\)"):
        base_tokenizer(Base(model="meta-llama/Llama-3.2-1B"), tmp_path)


def test_a_tokenizer_whose_control_tokens_get_other_ids_by_being_read_is_refused(
    tiny: Path, tmp_path: Path
) -> None:
    content = json.loads((tiny / "tokenizer.json").read_text(encoding="utf-8"))
    for token in content["added_tokens"]:
        token["id"] += 100
        content["model"]["vocab"].pop(token["content"], None)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")

    with pytest.raises(DataError, match=r"has id 4196, and tokenizers reads it as 4096.*model\.vocab"):
        read_tokenizer(tmp_path)

    content["model"]["vocab"] |= {token["content"]: token["id"] for token in content["added_tokens"]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert read_tokenizer(tmp_path).token_to_id("<|begin_of_text|>") == 4196


def own_code(folder: Path, content: dict[str, Any]) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    config = {"auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return base_tokenizer(Base(model=str(folder)), folder)


def dropping_out(folder: Path, content: dict[str, Any]) -> object:
    content["model"]["dropout"] = 0.1
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return read_tokenizer(folder)


def damaged(name: str, text: str, read: Callable[[Path], object]) -> Callable[[Path, dict[str, Any]], object]:
    def look(folder: Path, _: dict[str, Any]) -> object:
        (folder / name).write_text(text)
        return read(folder)

    return look


DEEP = '{"vocab_size": ' + "[" * 200_000 + "]" * 200_000 + "}"


@pytest.mark.parametrize(
    ("look", "error", "message"),
    [
        (dropping_out, DataError, r"tokenizer\.json: model\.dropout is 0\.1, .* set it to null"),
        (own_code, IntegrityError, r"names code to run \(auto_map\), and none is run"),
        (
            damaged("tokenizer.json", '{"version"', read_tokenizer),
            DataError,
            r"tokenizer\.json: tokenizers cannot",
        ),
        (damaged("config.json", DEEP, model_config), DataError, "config.json: is not JSON .nested too deep"),
        (
            damaged("tokenizer_config.json", DEEP, tokenizer_config),
            DataError,
            "_config.json: is not JSON .nested",
        ),
        (
            lambda folder, _: base_tokenizer(Base(model=str(folder)), folder),
            DataError,
            r"holds no tokenizer\.json; only",
        ),
        (
            lambda folder, _: base_tokenizer(Base(model="/nowhere/x"), folder),
            DataError,
            "no directory '/nowhere/x'; give",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_tokenizer_that_cannot_be_used_is_refused_with_its_file(
    tiny: Path,
    tmp_path: Path,
    look: Callable[[Path, dict[str, Any]], object],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        look(tmp_path, json.loads((tiny / "tokenizer.json").read_text(encoding="utf-8")))


def write_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **changes}))
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_implementation": "evil/kernel"},
        {"_attn_implementation": "kernels-community/flash-attn3:attend"},
        {"attn_implementation": {"": "sdpa", "text_config": "evil/kernel"}},
        {"text_config": {"_attn_implementation_internal": "paged|evil/kernel"}},
        {"experts_implementation": ["evil/kernel"]},
    ],
)
def test_kernels_from_elsewhere_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(
        IntegrityError, match=r"_implementation.* is .*evil|kernels-community.*remove the key"
    ):
        model_config(write_config(tmp_path, **changes))


@pytest.mark.parametrize("name", ["eager", "sdpa", "flash_attention_2", None])
def test_implementations_of_transformers_itself_may_be_named(tmp_path: Path, name: str | None) -> None:
    assert model_config(write_config(tmp_path, attn_implementation=name))["model_type"] == "llama"


def test_other_weights_and_nested_code_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"transformers_weights is 'other.safetensors'"):
        model_config(write_config(tmp_path, transformers_weights="other.safetensors"))
    with pytest.raises(IntegrityError, match="auto_map asks to run code"):
        model_config(write_config(tmp_path, text_config={"auto_map": {"AutoModel": "evil.Model"}}))


def test_an_adapter_beside_the_weights_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")

    with pytest.raises(IntegrityError, match=r"adapter_config.json beside config.json.*merge_and_unload"):
        model_config(tmp_path)


def test_links_stay_inside_or_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    blob = tmp_path / "hub/models--a--b/blobs/0123"
    blob.parent.mkdir(parents=True)
    blob.write_text('{"model_type": "llama"}')
    snapshot = tmp_path / "hub/models--a--b/snapshots/main"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/0123")

    assert model_config(snapshot) == {"model_type": "llama"}

    within = write_config(tmp_path / "within")
    (within / "weights").write_text("1")
    (within / "model.safetensors").symlink_to("weights")
    assert model_config(within)

    (tmp_path / "secret").write_text("{}")
    (within / "tokenizer.json").symlink_to("../secret")
    with pytest.raises(IntegrityError, match=r"tokenizer.json: is a link to .*secret, outside"):
        model_config(within)


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", float("nan")), ("head_dim", 0), ("rope_theta", -1), ("rms_norm_eps", "x")],
)
def test_a_number_that_is_no_size_is_told_with_its_key(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(DataError, match=rf"config.json: {key} is {value!r}, not a .*number above 0, correct"):
        model_config(write_config(tmp_path, text_config={key: value}))
