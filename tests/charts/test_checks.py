"""The small programs that the chart runs in a cluster, run here."""

import base64
import functools
import os
import runpy
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.charts.chart import CASES, CHART, Object, named, pods, render
from tests.kit.http_server import Reply, Request, http_server
from tests.kit.jobs import launch_options
from tests.kit.marks import matrix

FILES = CHART / "files"


@dataclass
class Server:
    """Answers like MLflow, or like the Kubernetes API."""

    port: int = 0
    login: str = ""
    checks_host: bool = True
    granted: frozenset[tuple[str, str, str]] = frozenset()
    asked: list[dict[str, Any]] = field(default_factory=list)

    def reply(self, request: Request) -> Reply:
        if request.method == "GET":
            allowed = request.headers["Host"].startswith("127.0.0.1") or not self.checks_host
            known = not self.login or request.headers["Authorization"] == self.login
            return Reply(status=403 if not allowed else 200 if known else 401)
        asked = request.body["spec"]["resourceAttributes"]
        self.asked.append(asked)
        resource = "/".join(filter(None, [asked["resource"], asked.get("subresource")]))
        allowed = (asked.get("group", ""), resource, asked["verb"]) in self.granted
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        return Reply(status=201, body=kind | {"spec": {}, "status": {"allowed": allowed}})


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with http_server(made.reply) as made.port:
        yield made


def check_mlflow(server: Server, **environment: str) -> "subprocess.CompletedProcess[str]":
    uri = f"http://127.0.0.1:{server.port}"
    return check({"MLFLOW_TRACKING_URI": uri} | environment)


def test_a_server_that_answers_by_its_name_alone_passes(server: Server) -> None:
    done = check_mlflow(server)

    assert (done.returncode, done.stdout.strip()) == (0, f"http://127.0.0.1:{server.port}: ready")


def test_a_server_that_answers_to_every_host_fails(server: Server) -> None:
    server.checks_host = False

    done = check_mlflow(server)

    assert done.returncode == 1
    assert "answers to any Host header; --allowed-hosts is not in force" in done.stderr


def test_a_server_with_a_login_is_asked_with_it(server: Server) -> None:
    server.login = "Basic bGV5bGE6c2hpcnJp"

    without = check_mlflow(server)
    with_login = check_mlflow(server, MLFLOW_TRACKING_USERNAME="leyla", MLFLOW_TRACKING_PASSWORD="shirri")

    assert "status 401" in without.stderr
    assert with_login.returncode == 0


def rights(server: Server, monkeypatch: pytest.MonkeyPatch, values: Object) -> None:
    """Run the test pod's own program with its own arguments, against a server that is none of Kubernetes'."""
    from kubernetes import client, config

    def load() -> None:
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{server.port}"
        client.Configuration.set_default(configuration)

    monkeypatch.setattr(client.Configuration, "_default", None)  # put back after the test
    monkeypatch.setattr(config, "load_incluster_config", load)
    arguments = named(render(values), "Pod", "-test-rights")["spec"]["containers"][0]["args"]
    monkeypatch.setattr(sys, "argv", ["-c", *arguments[1:]])
    runpy.run_path(str(FILES / "check_rights.py"), run_name="__main__")


def granted(values: Object) -> frozenset[tuple[str, str, str]]:
    role = named(render(values), "Role", "-launcher")
    return frozenset(
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


@pytest.mark.parametrize("name", ["default", "hyperpod with fsx"])
def test_every_right_of_the_role_is_asked_of_the_cluster(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    server.granted = granted(CASES[name])

    rights(server, monkeypatch, CASES[name])

    space = CASES[name].get("jobs", {}).get("namespace", "training")
    assert capsys.readouterr().out == f"{space}: {len(server.granted)} rights, all there\n"
    assert {asked["namespace"] for asked in server.asked} == {space}
    assert len(server.asked) == len(server.granted) + 1


def test_a_right_that_is_missing_fails_with_its_name(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.granted = granted({}) - {("", "pods/log", "get")}

    with pytest.raises(SystemExit) as ended:
        rights(server, monkeypatch, {})

    assert str(ended.value).startswith("training: the launcher may not get pods/log; is the RoleBinding")


@pytest.mark.skipif(
    os.getuid() == 0 and not Path("/proc/version").exists(), reason="needs a directory that cannot be written"
)
def test_a_claim_that_cannot_be_written_fails_with_the_remedy(tmp_path: Path) -> None:
    def check(folder: Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, str(FILES / "check_storage.py"), str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    good, bad = check(tmp_path), check(Path("/proc"))

    assert good.returncode == 0
    assert f"{tmp_path}: ready" in good.stdout
    assert list(tmp_path.iterdir()) == []
    assert bad.returncode == 1
    assert "cannot write" in bad.stderr
    assert "chown" in bad.stderr


def test_the_programs_in_the_pods_are_the_files_and_are_python() -> None:
    programs = {"-test-mlflow": "check_mlflow.py", "-test-rights": "check_rights.py"}

    for pod, file in programs.items():
        container = named(render({}), "Pod", pod)["spec"]["containers"][0]
        assert container["command"] == ["python", "-c"]
        assert container["args"][0].strip() == (FILES / file).read_text(encoding="utf-8").strip()
        assert "$(" not in container["args"][0]  # Kubernetes would put a variable there


def test_the_launcher_s_command_is_one_that_the_image_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = next(spec for name, _, spec in pods(render(CASES["launch"])) if name.endswith("-launch"))
    [container] = spec["containers"]

    options = launch_options(monkeypatch, container["args"])

    assert container["command"] == ["python", "-m", "anadil"]
    assert (options.stage, options.backend, options.run) == ("pretrain", "pytorchjob", "7")
    assert (options.corpus, options.out) == (["/data/run/corpus"], "/data/run/model")


@pytest.mark.parametrize("name", ["kubeflow with schedule", "kubeflow without schedule"])
def test_the_registrations_command_is_one_that_the_image_takes(name: str) -> None:
    import argparse

    from anadil.cli.cluster import submit

    container = named(render(CASES[name]), "Job", "-registration")["spec"]["template"]["spec"]["containers"][
        0
    ]
    command, *rest = container["args"]
    parser = argparse.ArgumentParser()
    {"submit": submit.add_submit, "schedule": submit.add_schedule}[command](parser)

    options = parser.parse_args(rest)

    assert container["command"] == ["python", "-m", "anadil"]
    assert options.name == "anadil"
    assert options.recipe == "/etc/anadil/recipe.yaml"
    assert (getattr(options, "cron", None), getattr(options, "upload_only", None)) in (
        ("0 3 * * 0", None),
        (None, True),
    )


@pytest.mark.parametrize("login", [matrix(True), matrix(False)])
def test_mlflow_starts_with_the_charts_own_arguments_and_lets_in_who_signs_in(
    tmp_path: Path, login: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    objects = render({"mlflow": {"workers": 1, "service": {"port": port}, "auth": {"enabled": login}}})
    [container] = named(objects, "Deployment", "-mlflow")["spec"]["template"]["spec"]["containers"]
    secret = named(objects, "Secret", "-login")["data"] if login else {}
    words = [*container["command"][1:], *container["args"]]

    def here(text: object) -> str:
        places = {"/var/lib/mlflow": str(tmp_path), "/etc/mlflow": str(tmp_path), "0.0.0.0": "127.0.0.1"}
        return functools.reduce(lambda text, place: text.replace(*place), places.items(), str(text))

    def value(entry: Object) -> str:
        if "value" in entry:
            return here(entry["value"])
        return base64.b64decode(secret[entry["valueFrom"]["secretKeyRef"]["key"]]).decode()

    if login:
        settings = named(objects, "ConfigMap", "-mlflow-auth")["data"]["config.ini"]
        (tmp_path / "config.ini").write_text(here(settings), encoding="utf-8")
    server = {entry["name"]: value(entry) for entry in container["env"]}
    test = named(objects, "Pod", "-test-mlflow")["spec"]["containers"][0]["env"]
    address = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
    client = {entry["name"]: value(entry) for entry in test} | address

    with subprocess.Popen(
        [sys.executable, "-m", "mlflow", *map(here, words)], env=os.environ | server, cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            known, unknown = (check(environment) for environment in (client, address))
            status = search(port, f"anadil-mlflow.training.svc:{port}", client)
        finally:
            process.terminate()
            time.sleep(0.1)

    assert (known.returncode, known.stderr, status) == (0, "", 200)
    assert ("status 401" in unknown.stderr) is login


def search(port: int, host: str, client: dict[str, str]) -> int:
    """Status of a search under the name that steps use."""
    login = ":".join(client.get(f"MLFLOW_TRACKING_{word}", "") for word in ("USERNAME", "PASSWORD"))
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/search?max_results=1",
        headers={"Host": host, "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(answer.status)


def check(environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """The test of the chart, which waits until the server is there."""
    command = [sys.executable, str(FILES / "check_mlflow.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=320, check=False)
