import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.cli import main
from anadil.core.errors import AnadilError, PreflightError, RecipeError, RetryableError
from anadil.release.export import export_model
from anadil.release.export.hub import check_rights
from tests.kit.http_server import Reply, Request, http_server

TOKEN = "hf_secretsecret"


@dataclass(kw_only=True)
class Hub:
    """What a hub has been told, and how it answers."""

    port: int = 0
    user: dict[str, Any] = field(
        default_factory=lambda: {
            "name": "leyla",
            "orgs": [{"name": "dil", "roleInOrg": "write"}, {"name": "guests", "roleInOrg": "read"}],
            "auth": {"accessToken": {"role": "write"}},
        }
    )
    status: dict[str, int] = field(default_factory=dict)
    """End of a path -> status of the answer, instead of 200."""
    repositories: dict[str, bool] = field(default_factory=dict)
    """Id -> whether it is private."""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def __call__(self, request: Request) -> Reply:
        path = request.path.removeprefix("/")
        self.asked.append(f"{request.method} {path}")
        for end, status in self.status.items():
            if path.endswith(end):
                return Reply(status=status, body={"error": "no"})
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return Reply(status=401, body={"error": "Invalid credentials"})
        if path == "api/whoami-v2":
            return Reply(body=self.user)
        if path == "api/repos/create":
            asked = request.body
            owner = asked.get("organization") or self.user["name"]
            self.repositories.setdefault(f"{owner}/{asked['name']}", asked["visibility"] == "private")
            hub_id = f"{owner}/{asked['name']}"
            return Reply(body={"url": f"{self.address}/{hub_id}", "id": hub_id})
        if "/preupload/" in path:
            how = {"uploadMode": "regular", "shouldIgnore": False}
            return Reply(body={"files": [{"path": each["path"], **how} for each in request.body["files"]]})
        if "/commit/" in path:
            self.commit(request.content)
            url = f"{self.address}/leyla/azeri/commit/1"
            return Reply(body={"commitUrl": url, "commitOid": "1", "success": True})
        name = path.removeprefix("api/models/").partition("/revision/")[0]
        if name not in self.repositories:
            return Reply(status=404, body={"error": "no such"}, headers={"X-Error-Code": "RepoNotFound"})
        return Reply(body={"id": name, "private": self.repositories[name], "sha": "0" * 40, "siblings": []})

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def commit(self, lines: bytes) -> None:
        for line in lines.splitlines():
            told = json.loads(line)
            value = told["value"]
            if told["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that this process talks to, with a token."""
    from huggingface_hub import constants

    made = Hub()
    with http_server(made) as port:
        made.port = port
        monkeypatch.setenv("HF_ENDPOINT", made.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An artifact of the adapted model; nothing reads its weights."""
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"weights" * 1000)
    (folder / "training.jsonl").write_text("{}")
    artifact.seal(folder, kind="model", origin={})
    return folder


@pytest.fixture(autouse=True)
def no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Card and MLmodel are tried elsewhere; here the model has no lineage to tell of."""
    monkeypatch.setattr(export_model, "write_mlmodel", lambda directory, **_: None)
    monkeypatch.setattr(export_model, "_write_card", lambda *_: None)


def push(model: Path, out: Path, hub_id: str, *options: str) -> int:
    return main.main(["export", str(model), "--out", str(out), "--push", hub_id, *options])


@pytest.mark.parametrize(
    ("hub_id", "full"), [("leyla/azeri-1b", "leyla/azeri-1b"), ("azeri", "leyla/azeri"), ("dil/a", "dil/a")]
)
def test_what_was_exported_lies_in_a_private_repository(
    hub_id: str, full: str, hub: Hub, model: Path, tmp_path: Path
) -> None:
    code = push(model, tmp_path / "out", hub_id)

    assert code == 0
    assert hub.repositories == {full: True}
    assert hub.files == {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert set(hub.files) == {"config.json", "model.safetensors"}


def test_a_public_repository_is_asked_for(hub: Hub, model: Path, tmp_path: Path) -> None:
    assert push(model, tmp_path / "out", "leyla/azeri", "--public") == 0

    assert hub.repositories == {"leyla/azeri": False}


def test_nothing_private_goes_to_a_repository_that_is_there_and_public(
    hub: Hub, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repositories["leyla/azeri"] = False

    assert push(model, tmp_path / "out", "leyla/azeri") == 4

    assert not hub.files
    assert "there and public, and nothing was uploaded; add --public" in capsys.readouterr().err


def test_one_file_is_not_pushed_without_its_card_and_licence(
    hub: Hub, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(model, tmp_path / "out.gguf", "leyla/azeri", "--format", "gguf") == 2

    assert not hub.repositories
    assert "with --push give a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hub_id", "message"),
    [
        ("meta-llama/mine", "is of leyla, who may not write to meta-llama; give one of leyla, dil as owner"),
        ("guests/mine", "who may not write to guests"),
    ],
)
def test_an_id_without_rights_is_refused_before_anything_is_written(
    hub_id: str, message: str, hub: Hub, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = push(model, tmp_path / "out", hub_id)

    assert code == 4
    assert message in capsys.readouterr().err
    assert hub.asked == ["GET api/whoami-v2"]
    assert not (tmp_path / "out").exists()


def test_a_refusal_of_the_hub_itself_is_exit_code_4_and_the_export_stays(
    hub: Hub, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.status["repos/create"] = 403

    code = push(model, tmp_path / "out", "leyla/azeri")

    told = capsys.readouterr()
    assert code == 4
    assert "--push leyla/azeri: the hub refused (403" in told.err
    assert (tmp_path / "out/model.safetensors").is_file()
    assert TOKEN not in told.err + told.out


@pytest.mark.parametrize(
    ("harm", "error", "message"),
    [
        ("no token", PreflightError, "no token; set HF_TOKEN"),
        ("wrong token", PreflightError, "the hub does not know the token; set HF_TOKEN"),
        ("read token", PreflightError, "the token may only read; set HF_TOKEN"),
        ("down", RetryableError, "the hub did not answer .*; run the same command again"),
        ("away", RetryableError, "the hub did not answer .*; run the same command again"),
    ],
)
def test_a_hub_that_does_not_let_us_in_is_told_apart_from_one_that_is_away(
    harm: str, error: type[AnadilError], message: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"wrong token": ("HF_TOKEN", "hf_other"), "away": ("HF_ENDPOINT", "http://127.0.0.1:9")}
    if harm in variables:
        monkeypatch.setenv(*variables[harm])
    if harm == "no token":
        monkeypatch.delenv("HF_TOKEN")
    if harm == "read token":
        hub.user["auth"] = {"accessToken": {"role": "read"}}
    if harm == "down":
        hub.status["whoami-v2"] = 500

    with pytest.raises(error, match=message):
        check_rights("leyla/azeri")


@pytest.mark.parametrize("hub_id", ["a/b/c", "", "leyla/a b", "https://huggingface.co/leyla/a", "-x"])
def test_what_is_no_id_is_a_mistake_of_the_command_line(hub_id: str, hub: Hub) -> None:
    with pytest.raises(RecipeError, match="is not a hub id"):
        check_rights(hub_id)
