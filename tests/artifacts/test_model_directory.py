"""What a model's directory may hold and say before anything of it is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.base_model import model_config
from anadil.core.errors import IntegrityError


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
