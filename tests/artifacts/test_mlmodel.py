"""The file by which MLflow loads a model; that it does is shown in tests/release/test_promotion_server.py."""

import json
from pathlib import Path

import pytest
import yaml

from anadil.artifacts import artifact
from anadil.artifacts.mlmodel import META, MLMODEL, write_mlmodel
from anadil.core.errors import IntegrityError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "transformers_version": "5.0.0"}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_text(name)
    return folder


def read(place: Path) -> tuple[dict[str, object], dict[str, object]]:
    flavors = yaml.safe_load((place / MLMODEL).read_text())["flavors"]
    return flavors["transformers"], flavors["python_function"]


def test_weights_stay_where_they_are_and_every_written_file_is_named(model: Path) -> None:
    before = {path.name for path in model.iterdir()}

    written = write_mlmodel(model, chats=True)

    files = {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()}
    assert files - before == set(written)
    loaded, served = read(model)
    assert (loaded["model_binary"], loaded["torch_dtype"]) == (".", "torch.bfloat16")
    assert loaded["inference_task"] == "llm/v1/chat"
    # The template has written the first token.
    assert served["config"] == {"add_special_tokens": False}
    assert "torch==" in (model / "requirements.txt").read_text()
    assert "+" not in (model / "requirements.txt").read_text()


def test_a_model_that_learned_no_chats_or_has_no_template_takes_prompts(model: Path) -> None:
    write_mlmodel(model, chats=False)
    assert read(model)[0]["inference_task"] == "llm/v1/completions"
    (model / "chat_template.jinja").unlink()
    write_mlmodel(model, chats=True)
    assert read(model)[0]["inference_task"] == "llm/v1/completions"


def test_another_place_finds_the_weights_by_their_path(model: Path, tmp_path: Path) -> None:
    before = sorted(model.rglob("*"))

    write_mlmodel(model, chats=True, out=tmp_path / "beside")

    assert sorted(model.rglob("*")) == before
    assert read(tmp_path / "beside")[0]["model_binary"] == str(model)
    assert (tmp_path / "beside/components/tokenizer/tokenizer.json").is_file()


def test_the_files_are_verified_and_are_no_part_of_the_digest(model: Path) -> None:
    plain = artifact.seal(model, kind="model", origin={})
    sealed = artifact.seal(model, kind="model", origin={}, varying=write_mlmodel(model, chats=False))

    assert sealed.digest == plain.digest
    assert MLMODEL in sealed.files
    (model / MLMODEL).write_text("flavors: {}")
    with pytest.raises(IntegrityError, match="MLmodel: differs from its manifest"):
        artifact.verify_files(model, sealed, "model")


def test_the_note_that_mlflow_leaves_where_it_loads_is_no_damage(model: Path) -> None:
    (model / "merged").mkdir()
    sealed = artifact.seal(model, kind="adapter", origin={})
    for place in (model, model / "merged"):
        (place / META).write_text("model_name: az\nmodel_version: '3'\n")

    artifact.verify_files(model, sealed, "adapter")
    artifact.check_sizes(str(model), sealed)
    (model / "merged" / "more").touch()
    with pytest.raises(IntegrityError, match="merged/more: not in its manifest"):
        artifact.verify_files(model, sealed, "adapter")
    with pytest.raises(IntegrityError, match="merged/more: not in its manifest"):
        artifact.check_sizes(str(model), sealed)
