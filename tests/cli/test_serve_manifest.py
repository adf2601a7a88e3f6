import json
from pathlib import Path

import pytest
import yaml

from anadil.artifacts import artifact
from anadil.cli import main
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
        f"# {made}/merged\n# 1000 B of weights and 1.0 GiB for one text of 8,192 tokens: 1 GPU(s)"
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
    assert {"--max-model-len=1024", "--tensor-parallel-size=2", "--backend=vllm"} <= set(model["args"])
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
        (["--name", "Az_1"], 2, "is no name of an InferenceService"),
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
