import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from anadil.artifacts import artifact
from anadil.cli import main
from anadil.release import model_source
from anadil.release.registry.client import RegisteredModel
from tests.release.test_served_model import adapter, directory


def test_the_objects_are_filled_in_with_what_the_model_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = adapter(tmp_path / "root" / "adapter")
    digest = artifact.finished_manifest(str(made), "adapter").digest

    code = main.main(["serve-manifest", str(made), "--claim", f"fsx={tmp_path}", "--namespace", "team"])

    text = capsys.readouterr().out
    _, deployment, service, _ = yaml.safe_load_all(text)
    [server] = deployment["spec"]["template"]["spec"]["containers"]
    assert code == 0
    assert text.startswith(
        f"# {made}/merged\n# 1000 B of weights and 1.0 GiB for one text of 8,192 tokens: 1 GPU"
    )
    assert deployment["metadata"] | {"labels": {}} == {"name": "anadil-az", "namespace": "team", "labels": {}}
    assert deployment["spec"]["template"]["metadata"]["annotations"]["anadil.dev/sha256"] == digest
    assert server["args"][:2] == ["--served-model-name=anadil-az", "--max-model-len=8192"]
    assert "--chat-template=/models/chat_template.jinja" in server["args"]
    assert server["volumeMounts"][-1]["subPath"] == "root/adapter/merged"
    assert service["spec"]["ports"][0]["port"] == 8000


def test_kserve_is_told_the_claim_in_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = directory(tmp_path / "Model 1.B", max_position_embeddings=2048)
    words = ["--kind", "kserve", "--claim", f"fsx={tmp_path}", "--gpus", "2", "--context", "1024"]

    code = main.main(["serve-manifest", str(made), *words])

    service = list(yaml.safe_load_all(capsys.readouterr().out))[1]
    model = service["spec"]["predictor"]["model"]
    assert code == 0
    assert service["metadata"]["name"] == "model-1-b"
    assert model["storageUri"] == "pvc://fsx/Model 1.B"
    assert {"--max_model_len=1024", "--dtype=bfloat16", "--tensor-parallel-size=2", "--backend=vllm"} <= set(
        model["args"]
    )
    assert model["resources"]["limits"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "a path of this machine, which no pod sees"),
        (["--claim", "fsx=/elsewhere"], 2, "does not lie there"),
        (["--claim", "fsx"], 2, "write NAME=PATH"),
        (["--context", "200000"], 2, "takes 1 to 131,072 tokens"),
        (["--context", "0"], 2, "takes 1 to 131,072 tokens"),
        (["--gpus", "3"], 2, "does not divide the model's 32 heads; give one of 1, 2, 4, 8, 16"),
        (["--gpu-memory", "1"], 4, "raise --gpu-memory"),
        *(
            (["--name", name], 2, "is not a name of an InferenceService")
            for name in ("", "Az", "a_b", "a/b", "1az", "az-", "a" * 41, "a" * 80)
        ),
        (["--claim", "F_1=/fsx"], 2, "--claim 'F_1': is not a name of a Kubernetes object"),
        (["--namespace", "a/b"], 2, "--namespace 'a/b': is not a name"),
        (["--service-account", "a b"], 2, "--service-account 'a b': is not a name"),
        (["--image", ""], 2, "'' is no name of an image"),
        (["--gpu-memory", "nan"], 2, "'nan' is no number above 0"),
        (["--gpu-memory", "-5"], 2, "'-5' is no number above 0"),
    ],
    ids=str,
)
def test_what_cannot_be_served_so_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, told: str
) -> None:
    made = adapter(tmp_path / "adapter")

    try:
        found = main.main(["serve-manifest", str(made), *words])
    except SystemExit as ended:  # argparse's own
        found = int(str(ended.code))

    shown = capsys.readouterr()
    assert found == code
    assert told in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [("9Big_Model--", "model-9big-model"), ("A" * 80, "a" * 40), ("ə", "model"), ("a b", "a-b")],
)
def test_a_directory_s_name_becomes_one_that_kubernetes_takes(
    name: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main.main(["serve-manifest", str(directory(tmp_path / name)), "--claim", f"fsx={tmp_path}"])

    assert next(yaml.safe_load_all(capsys.readouterr().out))["metadata"]["name"] == expected


def test_a_model_without_a_template_says_that_it_does_not_chat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = directory(tmp_path / "model")
    (made / "chat_template.jinja").unlink()

    main.main(["serve-manifest", str(made), "--claim", f"fsx={tmp_path}"])

    text = capsys.readouterr().out
    assert "# No chat template lies beside it: only /v1/completions answers." in text
    assert "--chat-template" not in text
    assert json.dumps(list(yaml.safe_load_all(text)))


@pytest.mark.parametrize(
    ("uri", "code", "told"),
    [
        ("s3://KEY:S3CRETS3CRET@bucket/model", 2, "a URI with a password or a token"),
        ("s3://bucket/model?token=S3CRETS3CRET", 2, "a URI with a password or a token"),
        ("hf://meta-llama/Llama-3.2-1B", 4, "download it first"),
        ("models:/no-version", 2, "names no version"),
        ("", 2, "an empty URI"),
        ("/nowhere", 3, "no such directory"),
    ],
)
def test_what_is_no_place_of_a_model_is_told_without_its_secrets(
    capsys: pytest.CaptureFixture[str], uri: str, code: int, told: str
) -> None:
    found = main.main(["serve-manifest", uri])

    shown = capsys.readouterr()
    assert found == code
    assert told in shown.err
    assert "S3CRET" not in shown.err
    assert shown.out == ""


def test_of_a_registered_model_the_promoted_version_is_served_and_no_other_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = adapter(tmp_path / "adapter")
    digest = artifact.finished_manifest(str(made), "adapter").digest
    version = RegisteredModel(
        name="az", version="3", uri=str(made), digest=digest, kind="adapter", source=str(made)
    )
    words = ["serve-manifest", "models:/az@champion", "--claim", f"fsx={tmp_path}"]
    monkeypatch.setattr(model_source, "resolve", lambda *_: version)

    assert main.main(words) == 0
    assert f"anadil.dev/sha256: {digest}" in capsys.readouterr().out

    monkeypatch.setattr(model_source, "resolve", lambda *_: dataclasses.replace(version, digest="0" * 64))
    assert main.main(words) == 5
    assert "holds other bytes than those that were promoted" in capsys.readouterr().err

    monkeypatch.setattr(model_source, "resolve", lambda *_: dataclasses.replace(version, uri=f"{made}-gone"))
    assert main.main(words) == 5
    assert "where it no longer exists" in capsys.readouterr().err
