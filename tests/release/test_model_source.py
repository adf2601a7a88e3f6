import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from anadil.artifacts import artifact, storage
from anadil.core.errors import AnadilError, DataError, IntegrityError, PreflightError, RecipeError
from anadil.release import bring_model, model_source
from anadil.release.model_source import find_model


def make_directory(folder: Path, **config: object) -> Path:
    """What looks like a Hugging Face model directory."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def make_artifact(folder: Path, kind: str) -> Path:
    make_directory(folder / "merged" if kind == "adapter" else folder)
    if kind == "adapter":
        (folder / "adapter_config.json").write_text("{}")
    artifact.seal(folder, kind=kind, origin={})
    return folder


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A registry with one version, to be filled in."""
    version = SimpleNamespace(name="anadil-az", version="3", uri="", digest="")
    monkeypatch.setattr(model_source, "resolve", lambda uri, tracking: version)
    return version


def test_a_model_artifact_is_loaded_from_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_artifact(tmp_path / "made", "model")
    monkeypatch.chdir(tmp_path)

    source = find_model("made/")

    assert source.uri == str(tmp_path / "made")
    assert source.kind == "model"
    assert source.candidate == "adapted"
    assert source.directory == tmp_path / "made"
    assert source.manifest == artifact.read_manifest(source.uri)


@pytest.mark.parametrize("given", ["", "/merged", "/merged/"])
def test_an_adapter_and_its_merged_directory_are_the_same_model(given: str, tmp_path: Path) -> None:
    made = make_artifact(tmp_path / "made", "adapter")

    source = find_model(f"{made}{given}")

    assert (source.uri, source.kind, source.candidate) == (str(made), "adapter", "finetuned")
    assert source.directory == made / "merged"


@pytest.mark.parametrize("given", ["", "/merged"])
def test_an_adapter_in_s3_is_brought_here(given: str, bucket: str, tmp_path: Path) -> None:
    uri = f"{bucket}/adapter/0a1b"
    storage.store(uri).put_directory(make_artifact(tmp_path / "made", "adapter"), uri)

    source = find_model(f"{uri}{given}")

    assert source.uri == uri
    assert source.directory is not None
    assert (source.directory / "model.safetensors").read_bytes() == b"weights"


def test_any_hugging_face_directory_is_a_model_without_a_manifest(tmp_path: Path) -> None:
    source = find_model(str(make_directory(tmp_path / "merged")))

    assert (source.kind, source.manifest, source.candidate) == ("directory", None, None)
    assert source.directory == tmp_path / "merged"


def test_a_checkpoint_is_known_and_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "step-00000003").mkdir()
    artifact.seal(tmp_path / "step-00000003", kind="checkpoint", origin={})

    source = find_model(str(tmp_path / "step-00000003"))

    assert (source.kind, source.directory) == ("checkpoint", None)


@pytest.mark.parametrize("given", ["", "/merged"])
def test_changed_bytes_are_refused(given: str, tmp_path: Path) -> None:
    made = make_artifact(tmp_path / "made", "adapter")
    (made / "merged/model.safetensors").write_bytes(b"Weights")

    with pytest.raises(IntegrityError, match=r"merged/model\.safetensors: differs from its manifest"):
        find_model(f"{made}{given}")


def test_a_name_of_the_registry_leads_to_its_artifact(tmp_path: Path, registry: SimpleNamespace) -> None:
    made = make_artifact(tmp_path / "made", "adapter")
    manifest = artifact.read_manifest(str(made))
    assert manifest is not None
    registry.uri, registry.digest = str(made), manifest.digest

    assert find_model("models:/anadil-az@champion").uri == str(made)


@pytest.mark.parametrize("harm", ["gone", "changed"])
def test_a_name_whose_artifact_is_gone_or_another_is_refused(
    harm: str, tmp_path: Path, registry: SimpleNamespace
) -> None:
    registry.uri, registry.digest = str(tmp_path / "made"), "0" * 64
    if harm == "changed":
        make_artifact(tmp_path / "made", "model")

    with pytest.raises(IntegrityError, match=r"version 3 lies at .*roll back"):
        find_model("models:/anadil-az@champion")


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        ("", RecipeError, "an empty URI"),
        ("nowhere", DataError, "nowhere: no such directory; give a model, merged or adapter artifact"),
        ("x" * 5000, DataError, "cannot be read"),
        ("model.gguf", DataError, "is a file, not a directory"),
        ("corpus", DataError, "holds a corpus, not a model"),
        ("empty", DataError, "config.json: no such file"),
        ("half.partial", DataError, "has not finished it"),
        ("peft", DataError, "is an adapter without its model; merge it first"),
        ("pickled", IntegrityError, "pickled weights can run code"),
        ("weightless", DataError, r"no model\.safetensors or model\.safetensors\.index\.json"),
        ("code", IntegrityError, "auto_map asks to run code"),
        ("gs://bucket/model", PreflightError, "storage gs:// is not supported"),
        ("hf://meta-llama/Llama-3.2-1B", PreflightError, "hf download meta-llama/Llama-3.2-1B"),
        (
            "https://me:hf_topsecret@huggingface.co/x",
            RecipeError,
            "take it out and use environment variables",
        ),
        ("s3://key:topsecret@bucket/model", RecipeError, "take it out and use environment variables"),
        ("https://hub/x?token=hf_topsecret", RecipeError, "take it out and use environment variables"),
    ],
)
def test_what_is_no_model_is_named_with_a_remedy(
    uri: str, error: type[AnadilError], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("corpus", "empty", "peft", "pickled", "weightless"):
        Path(name).mkdir()
    Path("model.gguf").write_bytes(b"GGUF")
    artifact.seal(Path("corpus"), kind="corpus", origin={})
    make_directory(Path("half.partial"))
    Path("peft/adapter_config.json").write_text("{}")
    for name in ("pickled", "weightless"):
        Path(name, "config.json").write_text("{}")
    Path("pickled/pytorch_model.bin").write_bytes(b"")
    make_directory(Path("code"), auto_map={"AutoModel": "evil.Model"})

    with pytest.raises(error, match=message) as caught:
        find_model(uri)

    assert "topsecret" not in str(caught.value)


def test_of_s3_only_artifacts_are_taken(bucket: str) -> None:
    with pytest.raises(DataError, match="on S3 only artifacts are taken"):
        find_model(f"{bucket}/somewhere")


def test_a_model_is_brought_without_its_logs_and_a_changed_byte_is_found(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    merged = make_directory(tmp_path / "adapter" / "merged")
    for file in (merged / "chat_template.jinja", merged / "training.jsonl", merged.parent / "adapter.jsonl"):
        file.write_text("{}")
    artifact.seal(tmp_path / "adapter", kind="adapter", origin={}, recipe={"language": "az"})
    storage.store(bucket).put_directory(tmp_path / "adapter", f"{bucket}/adapter")
    target = tmp_path / "mnt" / "models"

    for _ in range(2):  # the second time as after a restart of the pod
        assert bring_model.main([f"{bucket}/adapter/merged", str(target)]) == 0

    names = {path.name for path in target.iterdir()}
    assert names == {"config.json", "model.safetensors", "chat_template.jinja"}
    assert (target / "model.safetensors").read_bytes() == b"weights"

    storage.store(bucket).write(f"{bucket}/adapter/merged/model.safetensors", b"Weights")
    assert bring_model.main([f"{bucket}/adapter/merged", str(tmp_path / "other")]) == 5
    assert "model.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [("corpus", 3, "holds a corpus"), ("checkpoint", 3, "not a model"), ("", 3, "not a model")],
)
def test_other_artifacts_and_plain_directories_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, code: int, text: str
) -> None:
    model = make_directory(tmp_path / "model")
    if kind:
        artifact.seal(model, kind=kind, origin={})

    assert bring_model.main([str(model), str(tmp_path / "other")]) == code
    assert text in capsys.readouterr().err


def test_two_words_are_taken() -> None:
    assert bring_model.main(["only-one"]) == 2
