import json
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact, storage
from anadil.artifacts.publish import S3Store
from anadil.core.errors import DataError, IntegrityError, PreflightError, RecipeError
from anadil.core.format import GIB
from anadil.release.serving import bring_model
from anadil.release.serving.served_model import ServedModel, describe_model

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "torch_dtype": "bfloat16",
}
LLAMA_70B = LLAMA_8B | {"hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 80}


def served(config: dict[str, Any], weight_bytes: int) -> ServedModel:
    return ServedModel(
        uri="s3://bucket/model", digest="", config=config, weight_bytes=weight_bytes, file_bytes=weight_bytes,
        dtype="bfloat16", has_template=True, language="az",
    )  # fmt: skip


def directory(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA_8B | changes))
    (folder / "model.safetensors").write_bytes(b"w" * 1000)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "training.jsonl").write_text("{}\n")
    return folder


def adapter(folder: Path) -> Path:
    directory(folder / "merged")
    (folder / "adapter.jsonl").write_text("{}")
    artifact.seal(folder, kind="adapter", origin={}, recipe={"language": "az"})
    return folder


def test_keys_and_values_of_a_text_are_counted_as_published() -> None:
    # 128 KiB a token: Llama 3 8B in 16 bits, 2 * 32 layers * 8 heads * 128 * 2 bytes.
    assert served(LLAMA_8B, 0).cache_bytes(1) == 128 * 1024
    assert served(LLAMA_70B, 0).cache_bytes(8192) == 8192 * 320 * 1024


@pytest.mark.parametrize(
    ("config", "weights", "context", "gib", "gpus"),
    [
        (LLAMA_8B, 16 * 10**9, 8192, 80, 1),
        (LLAMA_8B, 16 * 10**9, 131_072, 80, 1),
        (LLAMA_8B, 16 * 10**9, 8192, 22, 1),
        (LLAMA_8B, 16 * 10**9, 32_768, 22, 2),
        (LLAMA_70B, 141 * 10**9, 8192, 80, 2),
        (LLAMA_70B, 141 * 10**9, 131_072, 80, 4),
        (LLAMA_70B, 141 * 10**9, 8192, 45, 4),
    ],
)
def test_the_fewest_gpus_are_taken_that_hold_model_and_text(
    config: dict[str, Any], weights: int, context: int, gib: int, gpus: int
) -> None:
    assert served(config, weights).gpus(context, gib * GIB) == gpus


def test_gpus_divide_the_heads_and_a_model_that_is_too_large_is_refused() -> None:
    odd = LLAMA_8B | {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 128}

    with pytest.raises(PreflightError, match="lower --context, or raise --gpu-memory"):
        served(odd, 80 * 10**9).gpus(8192, 40 * GIB)  # 2 of 6 heads, but not 4 or 8


def test_of_an_adapter_the_merged_model_is_served(tmp_path: Path) -> None:
    made = adapter(tmp_path / "adapter")

    found = describe_model(str(made))

    assert found.uri == str(made / "merged")
    assert found.has_template
    assert found.language == "az"
    assert found.weight_bytes == 1000
    assert found.digest == artifact.finished_manifest(str(made), "adapter").digest


def test_32_bit_weights_count_as_16_bits_in_which_they_are_served(tmp_path: Path) -> None:
    found = describe_model(str(directory(tmp_path / "model", torch_dtype="float32")))

    assert (found.weight_bytes, found.file_bytes > 1000) == (500, True)
    assert found.dtype == "bfloat16"


def test_of_a_model_on_s3_only_manifest_and_configuration_are_read(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = adapter(tmp_path / "adapter")
    storage.store(bucket).put_directory(made, f"{bucket}/adapter")
    read: list[str] = []
    original = S3Store.read

    def noted(store: S3Store, uri: str) -> bytes:
        read.append(uri)
        return original(store, uri)

    monkeypatch.setattr(S3Store, "read", noted)

    found = describe_model(f"{bucket}/adapter/merged")

    assert found == describe_model(f"{bucket}/adapter")
    assert found.uri == f"{bucket}/adapter/merged"
    assert {uri.rpartition("/")[2] for uri in read} == {"manifest.json", "config.json"}


def test_a_configuration_on_s3_that_somebody_changed_is_refused(bucket: str, tmp_path: Path) -> None:
    storage.store(bucket).put_directory(adapter(tmp_path / "adapter"), f"{bucket}/adapter")
    changed = json.dumps(LLAMA_8B | {"max_position_embeddings": 1}).encode()
    storage.store(bucket).write(f"{bucket}/adapter/merged/config.json", changed)

    with pytest.raises(IntegrityError, match=r"config\.json: differs from its manifest"):
        describe_model(f"{bucket}/adapter")


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        ("corpus", DataError, "holds a corpus"),
        ("checkpoint", RecipeError, "a checkpoint, which no server loads"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, kind: str, error: type[Exception], told: str) -> None:
    made = directory(tmp_path / kind)
    artifact.seal(made, kind=kind, origin={})

    with pytest.raises(error, match=told):
        describe_model(str(made))


def test_a_configuration_without_what_a_server_needs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.json: does not say what a server has to know"):
        describe_model(str(directory(tmp_path / "model", num_hidden_layers=None)))


def test_a_model_is_brought_without_its_logs_and_a_changed_byte_is_found(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage.store(bucket).put_directory(adapter(tmp_path / "adapter"), f"{bucket}/adapter")
    target = tmp_path / "mnt" / "models"

    for _ in range(2):  # the second time as after a restart of the pod
        assert bring_model.main([f"{bucket}/adapter/merged", str(target)]) == 0

    names = {path.name for path in target.iterdir()}
    assert names == {"config.json", "model.safetensors", "chat_template.jinja"}
    assert (target / "model.safetensors").read_bytes() == b"w" * 1000

    storage.store(bucket).write(f"{bucket}/adapter/merged/model.safetensors", b"x" * 1000)
    assert bring_model.main([f"{bucket}/adapter/merged", str(tmp_path / "other")]) == 5
    assert "model.safetensors" in capsys.readouterr().err
    assert bring_model.main(["only-one"]) == 2
