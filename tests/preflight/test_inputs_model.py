import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from anadil.artifacts.base_model import base_tokenizer
from anadil.core.errors import AnadilError, DataError, IntegrityError, PreflightError
from anadil.preflight.inputs import check_weights, look_at_base
from anadil.recipe.sections import Recipe
from tests.kit.harness import again

CLAIM = "cluster.volumes=[{claim: fsx, path: /claims/fsx}]"


def safetensors(num_bytes: int) -> bytes:
    header = json.dumps(
        {"__metadata__": {}, "w": {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}}
    )
    return struct.pack("<Q", len(header)) + header.encode() + b"\0" * num_bytes


@pytest.fixture
def model(tmp_path: Path, recipe: Recipe) -> Path:
    """A directory that has all that a model needs, as far as preflight looks."""
    tokenizer = base_tokenizer(recipe.base, tmp_path / "cache") / "tokenizer.json"
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (folder / "model.safetensors").write_bytes(safetensors(1_000))
    return folder


def test_a_whole_model_passes(model: Path, recipe: Recipe) -> None:
    found = look_at_base(again(recipe, f"base.model={model}"))

    assert found.detail == f"{model}, a tokenizer of 4,102 tokens"


def _tear(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-300])


def _pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")


def _empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def _index(folder: Path) -> None:
    named = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(named))


def _tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def _config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _code(folder: Path) -> None:
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "x.Y"}}')


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (_tear, IntegrityError, r"model\.safetensors: has [\d,]+ bytes, not the [\d,]+ that its header says"),
        (_pointer, IntegrityError, r"model\.safetensors: has 57 bytes, and no header of safetensors; fetch"),
        (_empty, IntegrityError, r"model\.safetensors: has 0 bytes, and no header of safetensors; fetch"),
        (_index, IntegrityError, r"1 of 2 files of weights are missing, the first is model-00002-of"),
        (_tokenizer, DataError, r"tokenizer\.json: tokenizers cannot read it"),
        (_config, DataError, r"config\.json: is not JSON"),
        (_code, IntegrityError, r"config\.json: auto_map asks to run code"),
    ],
)
def test_a_damaged_model_is_refused(
    damage: Callable[[Path], None], kind: type[AnadilError], message: str, model: Path, recipe: Recipe
) -> None:
    damage(model)

    with pytest.raises(kind, match=message):
        look_at_base(again(recipe, f"base.model={model}"))


@pytest.mark.parametrize("here", [True, False])
def test_a_model_type_that_nobody_compared_is_refused_by_name(
    here: bool, model: Path, recipe: Recipe
) -> None:
    (model / "config.json").write_text('{"model_type": "mixtral", "num_local_experts": 8}')
    _tear(model)

    with pytest.raises(PreflightError, match=r"'mixtral' is a mixture of experts"):
        look_at_base(again(recipe, f"base.model={model}"), here=here)


def test_the_header_of_an_empty_file_of_weights_counts_no_tensors(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")

    check_weights(tmp_path)


def test_a_model_on_a_claim_is_said_to_be_unseen(recipe: Recipe) -> None:
    found = look_at_base(again(recipe, CLAIM, "base.model=/claims/fsx/llama"), here=False)

    assert (found.seen, found.detail) == (False, "/claims/fsx/llama (claim fsx) can be seen from pods alone")
