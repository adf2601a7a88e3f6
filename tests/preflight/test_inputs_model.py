import json
import math
import struct
from pathlib import Path

import pytest

from anadil.artifacts import base_model
from anadil.artifacts.base_model import base_tokenizer
from anadil.core.errors import AnadilError, DataError, IntegrityError, PreflightError
from anadil.preflight.base_model import gguf_detail, inspect_base, inspect_kind, rotation_hint
from anadil.recipe.sections import Base, Recipe
from tests.kit.harness import again

CLAIM = "cluster.volumes=[{claim: fsx, path: /claims/fsx}]"
WEIGHTS = "model.safetensors"


CONFIG = {
    "model_type": "llama",
    "vocab_size": 4_102,
    "hidden_size": 4,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}
LAYER = {
    "input_layernorm": [4],
    "self_attn.q_proj": [4, 4],
    "self_attn.k_proj": [4, 4],
    "self_attn.v_proj": [4, 4],
    "self_attn.o_proj": [4, 4],
    "post_attention_layernorm": [4],
    "mlp.gate_proj": [8, 4],
    "mlp.up_proj": [8, 4],
    "mlp.down_proj": [4, 8],
}
SHAPES = {
    "model.embed_tokens.weight": [4_102, 4],
    **{f"model.layers.0.{name}.weight": shape for name, shape in LAYER.items()},
    "model.norm.weight": [4],
}


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    """A file of zeros."""
    header: dict[str, object] = {"__metadata__": {}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * end


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of the tiny model."""
    folder = base_tokenizer(Base(model="tiny"), tmp_path_factory.mktemp("cache"))
    return (folder / "tokenizer.json").read_bytes()


@pytest.fixture
def model(tmp_path: Path, tokenizer: bytes) -> Path:
    """A directory that has all that a model needs, as far as preflight looks."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_bytes(tokenizer)
    (folder / WEIGHTS).write_bytes(safetensors(SHAPES))
    return folder


def test_a_post_trained_base_is_named_with_its_reason_and_what_keeps_its_chats(
    model: Path, recipe: Recipe
) -> None:
    again_with = again(recipe, f"base.model={model}")
    plain = inspect_kind(again_with)
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}<|eot_id|>")
    unknown = inspect_kind(again_with)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [4_097, 4_101]}))
    post_trained = inspect_kind(again_with)

    assert (plain.detail, plain.remedy) == ("pretrained: it has no chat template", "")
    assert unknown.detail.startswith("unknown: ")
    assert "ask the model yourself" in unknown.remedy
    assert (
        post_trained.detail
        == "post-trained: generation_config.json ends texts with <|eot_id|>, an end of turns"
    )
    assert "written_by: base" in post_trained.remedy


def test_a_whole_model_passes(model: Path, recipe: Recipe) -> None:
    found = inspect_base(again(recipe, f"base.model={model}"))

    assert found.detail == f"{model}, a tokenizer of 4,102 tokens, GGUF as llama-bpe"


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        (
            WEIGHTS,
            safetensors(SHAPES)[:-300],
            IntegrityError,
            r"model\.safetensors: has [\d,]+ bytes, not the [\d,]+ that its header says",
        ),
        (
            WEIGHTS,
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
            IntegrityError,
            r"model\.safetensors: has 57 bytes, and no header of safetensors; fetch",
        ),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}',
            IntegrityError,
            r"1 of 2 files of weights are missing, the first is model-00002-of",
        ),
        ("tokenizer.json", b"{}", DataError, r"tokenizer\.json: tokenizers cannot read it"),
        ("config.json", b"{", DataError, r"config\.json: is not JSON"),
        (
            "config.json",
            b'{"auto_map": {"AutoModel": "x.Y"}}',
            IntegrityError,
            r"config\.json: auto_map asks to run code",
        ),
    ],
)  # fmt: skip
def test_a_damaged_model_is_refused(
    name: str, content: bytes, kind: type[AnadilError], message: str, model: Path, recipe: Recipe
) -> None:
    (model / name).write_bytes(content)

    with pytest.raises(kind, match=message):
        inspect_base(again(recipe, f"base.model={model}"))


@pytest.mark.parametrize(
    ("shapes", "changes", "message"),
    [
        ({"model.layers.1.mlp.up_proj.weight": [8, 4]}, {}, r"asks for none, the first model\.layers\.1\.mlp"),
        ({}, {"num_hidden_layers": 2}, r"asks for 2 layers .*, and its files hold 1"),
        ({}, {"intermediate_size": 4}, r"3 of another shape, the first model\.layers\.0\.mlp\.down_proj"),
    ],
)  # fmt: skip
def test_weights_that_config_json_does_not_describe_are_refused_before_the_run(
    shapes: dict[str, list[int]], changes: dict[str, int], message: str, model: Path, recipe: Recipe
) -> None:
    (model / WEIGHTS).write_bytes(safetensors({**SHAPES, **shapes}))
    (model / "config.json").write_text(json.dumps({**CONFIG, **changes}))

    with pytest.raises(IntegrityError, match=message):
        inspect_base(again(recipe, f"base.model={model}"))


def test_a_model_type_that_nobody_compared_is_refused_by_name(model: Path, recipe: Recipe) -> None:
    (model / "config.json").write_text('{"model_type": "phimoe", "num_local_experts": 8}')
    (model / WEIGHTS).write_bytes(b"")

    with pytest.raises(PreflightError, match=r"'phimoe' is a mixture of experts"):
        inspect_base(again(recipe, f"base.model={model}"), here=False)


def test_a_model_type_of_the_hub_is_refused_too(
    model: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / "config.json").write_text('{"model_type": "bloom"}')
    monkeypatch.setattr(base_model, "from_hub", lambda *_: model)

    with pytest.raises(PreflightError, match="'bloom' is not proven to train"):
        inspect_base(again(recipe, "base.model=bigscience/bloom"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"normalizer": {"type": "Lowercase"}},
            "no GGUF (llama.cpp cannot read its tokenizer: it normalizes texts (Lowercase))",
        ),
        (
            {"normalizer": {"type": "NFC"}},
            "GGUF as llama-bpe (llama.cpp does not normalize: a text that is not in NFC becomes other tokens there)",
        ),
        (
            {"normalizer": {"type": "NFD"}, "model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}},
            "no GGUF (llama.cpp cannot read its tokenizer: it is of type Unigram, not BPE)",
        ),
    ],
)
def test_what_export_to_gguf_will_refuse_is_known_before_anything_is_trained(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    from tests.kit.llama_3 import make_llama_3  # loads torch

    make_llama_3(tmp_path / "base")
    file = tmp_path / "base/tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))

    assert gguf_detail(tmp_path / "base") == said


def test_export_and_doctor_say_the_same(tmp_path: Path) -> None:
    from anadil.release.export.gguf_refusal import check_gguf
    from tests.kit.llama_3 import make_llama_3  # loads torch

    make_llama_3(tmp_path / "base", hidden_act="gelu")

    with pytest.raises(
        PreflightError, match=r"hidden_act is 'gelu', and llama\.cpp's llama computes 'silu'; export with"
    ):
        check_gguf(tmp_path / "base")
    assert (
        gguf_detail(tmp_path / "base")
        == "no GGUF (hidden_act is 'gelu', and llama.cpp's llama computes 'silu')"
    )


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


@pytest.mark.parametrize(
    ("config", "length", "told"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 1024}, 2048, True),
        ({"rope_parameters": DYNAMIC, "max_position_embeddings": 2048}, 2048, False),
        ({"rope_parameters": {"rope_type": "longrope"}, "original_max_position_embeddings": 512}, 2048, True),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}}, 2048, False),
        ({"rope_parameters": {"full_attention": DYNAMIC}, "max_position_embeddings": 512}, 2048, True),
        ({"rope_parameters": {"rope_type": "yarn"}, "max_position_embeddings": 512}, 2048, False),
    ],
)  # fmt: skip
def test_a_rotation_that_depends_on_the_batch_is_told_before_the_run(
    config: dict[str, object], length: int, told: bool
) -> None:
    hint = rotation_hint({"model_type": "llama", **config}, length)

    assert ("otherwise where one is longer than" in hint) is told


def test_doctor_tells_of_such_a_rotation(model: Path, recipe: Recipe) -> None:
    file = model / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"rope_parameters": DYNAMIC, "max_position_embeddings": 64})
    )

    found = inspect_base(again(recipe, f"base.model={model}", "pretrain.sequence_length=128"))

    assert "otherwise where one is longer than" in found.remedy
