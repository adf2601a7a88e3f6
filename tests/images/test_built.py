"""Built images, run as a cluster runs them: any user, read-only root, no network.

They are looked for as ANADIL_TEST_IMAGES/<name>:<version> (localhost/anadil) in podman's storage, those that IMAGES
names alone where it is set.
"""

import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from anadil import __version__
from anadil.core.stages import FLOW, LAPTOP
from anadil.runtime.cache_key import code_digest
from tests.images.files import FOLDER, NAMES, STAGES, TORCH, pins, rooms

pytestmark = pytest.mark.image

REGISTRY = os.environ.get("ANADIL_TEST_IMAGES", "localhost/anadil")
NAMED = (os.environ.get("IMAGES") or "all").split()
"""What `images/ci.sh` has built just now; others that the machine may hold are of another time."""
ENVIRONMENT = dict(os.environ)  # With CONTAINERS_CONF, from before a test takes anything away.
RESTRICTED = (
    "--rm", "--read-only", "--user", "12345", "--network", "none", "--tmpfs", "/tmp", "--cap-drop", "ALL",
)  # fmt: skip
LOOK = """
import importlib.metadata, json, os, pathlib, shutil, sys
package = pathlib.Path(sys.prefix, "lib/python3.11/site-packages/anadil")
found = {
    "folders": sorted({path.parent.relative_to(package).parts[0] for path in package.rglob("*.*")
                       if path.suffix != ".pyc" and path.parent != package and path.name not in ("__init__.py", "stage.py", "need.py")}),
    "packages": {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()},
    "programs": [name for name in ("gcc", "cc", "g++", "make", "pip", "pip3", "curl", "git") if shutil.which(name)],
    "python": sys.executable, "environment": dict(os.environ), "user": os.getuid(),
    "home": oct(os.stat(os.environ["HOME"]).st_mode & 0o777), "home_group": os.stat(os.environ["HOME"]).st_gid,
    "bill": json.loads(pathlib.Path("/opt/anadil/sbom.cdx.json").read_text()), "opt": os.listdir("/opt"),
    # Compiled by content: the flags behind the magic number say that no time is compared.
    "uncompiled": sum(not file.exists() or file.read_bytes()[4:8] != b"\\1\\0\\0\\0" for file in
                      (pathlib.Path(__import__("importlib.util").util.cache_from_source(path)) for path in package.rglob("*.py"))),
}
if package.is_dir():
    from anadil.core.stages import FLOW
    from anadil.core.build import PACKAGE
    from anadil.runtime.cache_key import code_digest
    found["digests"] = {s.name: code_digest(s) for s in FLOW if (PACKAGE / s.name / "run.py").is_file()}
print(json.dumps(found))
"""
KERNELS = """
import importlib, json, sys
importlib.import_module(f"anadil.{sys.argv[1]}.warm_kernels").warm_kernels()
called = [each for each in importlib.import_module(f"anadil.{sys.argv[1]}.kernels.compiled").KERNELS._kernels if each.dispatcher]
print(json.dumps({"loaded": [each.__name__ for each in called if each.dispatcher.stats.cache_hits],
                  "compiled": [each.__name__ for each in called if each.dispatcher.stats.cache_misses]}))
"""


def podman(*arguments: str, code: int | None = 0, timeout: float = 180) -> "subprocess.CompletedProcess[str]":
    command = ["podman", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=timeout, env=ENVIRONMENT
    )
    assert code is None or done.returncode == code, f"{' '.join(command)[:300]}\n{done.stderr[-3000:]}"
    return done


def image(name: str) -> str:
    """The full name of an image that this machine has."""
    if not {name, "all"} & set(NAMED):
        pytest.skip(f"IMAGES={' '.join(NAMED)}: {name} is not built again")
    if shutil.which("podman") is None:
        pytest.skip("no podman on this machine")
    full = f"{REGISTRY}/{name}:{__version__}"
    if podman("image", "exists", full, code=None).returncode:
        pytest.skip(f"no image {full}; REGISTRY={REGISTRY} images/build.sh {name} builds it")
    return full


@cache
def inspected(name: str) -> dict[str, Any]:
    described: list[dict[str, Any]] = json.loads(podman("image", "inspect", image(name)).stdout)
    return described[0]


@cache
def inside(name: str) -> dict[str, Any]:
    """What an image's own Python sees, as a user that nobody knows."""
    done = podman("run", *RESTRICTED, "--entrypoint", "python", image(name), "-c", LOOK)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_loads_with_any_user_a_read_only_root_and_no_network(name: str) -> None:
    done = podman("run", *RESTRICTED, image(name), "--self-test")

    assert done.stdout == f"anadil {__version__} {name}: ready\n"
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.parametrize(
    ("name", "stage"),
    [("clean", "clean"), ("tokenizer", "tokenizer"), (LAPTOP, "clean"), (LAPTOP, "tokenizer")],
)
def test_no_process_of_an_image_compiles_kernels(name: str, stage: str) -> None:
    """Whatever starts it: a pod's command is `python -m`, not the entry point."""
    done = podman("run", *RESTRICTED, "--entrypoint", "python", image(name), "-c", KERNELS, stage)

    seen = json.loads(done.stdout)
    assert seen["loaded"]
    assert seen["compiled"] == []


def test_the_tools_write_the_report_plan_and_render(tmp_path: Path) -> None:
    tools = image("tools")

    report = podman("run", *RESTRICTED, "--entrypoint", "python", tools, "-m", "anadil.report", "--self-test")
    plan = podman("run", *RESTRICTED, tools, "plan", "azerbaijani-1b", "-o", "json")
    clients = (
        "import boto3, jinja2, kubernetes.client, mlflow, sagemaker_mlflow; import anadil.launch.launcher"
    )
    podman("run", *RESTRICTED, "--entrypoint", "python", tools, "-c", clients)

    assert report.stdout.endswith("report: ready\n")
    assert json.loads(plan.stdout)["recipe"] == "azerbaijani-1b"


def lay_training(work: Path) -> list[str]:
    """A small model, corpus and tokenizer in a directory that any user may write to; the stage's options for `/data`."""
    from tests.kit import pretraining

    pretraining.make_corpus(work / "corpus")
    pretraining.make_tokenizer_artifact(work / "tokenizer")
    pretraining.make_model(work / "base")
    phases = [{"trains": "all", "steps": 300, "lr": 0.001}]
    recipe = pretraining.make_recipe(Path("/data/base"), phases=phases, checkpoint_every=20)
    (work / "recipe.yaml").write_text(recipe.model_dump_json(exclude_unset=True), encoding="utf-8")
    for path in (work, *work.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o644)
    return [
        "--recipe", "/data/recipe.yaml", "--corpus", "/data/corpus", "--tokenizer", "/data/tokenizer",
        "--out", "/data/model", "--set", "tracking.uri=off",
    ]  # fmt: skip


def test_a_person_with_docker_alone_runs_the_recipe_and_reads_its_pages(tmp_path: Path) -> None:
    """One folder is mounted, of another user than the image's, and one port of this machine's loopback is published."""
    tmp_path.chmod(0o700)
    os.chown(tmp_path, 12345, 12345)
    options = ("--volume", f"{tmp_path}:/work")
    podman("run", *RESTRICTED, *options, image(LAPTOP), "run", "smoke", "--until", "clean", timeout=600)
    outside = [
        *(each for each in RESTRICTED if each not in ("--network", "none")),
        "--publish",
        "127.0.0.1::8765",
    ]

    started = podman("run", "--detach", *outside, *options, image(LAPTOP), "watch")
    container = started.stdout.strip()
    try:
        address = podman("port", container, "8765").stdout.strip()
        for _ in range(120):
            if said := podman("logs", container).stdout.strip():
                break
            time.sleep(0.5)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://{address}/", timeout=30)
        host = urlsplit(said).hostname or ""
        asked = urllib.request.Request(said.replace(f"{host}:8765", address), headers={"Host": host})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            page = answer.read().decode()
    finally:
        podman("rm", "--force", "--time", "5", container)

    assert address.startswith("127.0.0.1:")
    assert "<title>anadil</title>" in page


def test_a_folder_of_another_user_is_said_with_the_remedy(tmp_path: Path) -> None:
    os.chown(tmp_path, 1, 1)
    tmp_path.chmod(0o755)

    done = podman("run", *RESTRICTED, "--volume", f"{tmp_path}:/work", image(LAPTOP), "run", "smoke", code=4)

    assert 'cannot be written; give another place, or docker run --user "$(id -u):$(id -g)"' in done.stderr


def test_an_image_hands_its_tracking_to_wandb(tmp_path: Path) -> None:
    """Offline, as a user that nobody knows, with a read-only root: the client writes into its directory alone."""
    stage = lay_training(tmp_path)
    given = ("--env", "WANDB_MODE=offline", "--env", "WANDB_DIR=/data", "--volume", f"{tmp_path}:/data")
    stage = [*stage[:-1], "tracking.uri=wandb://az-team/az"]
    short = ("--set", "pretrain.phases=[{trains: all, steps: 2, lr: 0.001}]")

    podman("run", *RESTRICTED, *given, image("pretrain"), *stage, *short, timeout=600)

    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 1


def test_a_pre_training_that_is_killed_inside_its_image_goes_on(tmp_path: Path) -> None:
    """The image's own Python writes the checkpoint and reads it; how it pickles is its own matter."""
    name = image("pretrain")
    stage = lay_training(tmp_path)
    options = (*RESTRICTED[1:], "--volume", f"{tmp_path}:/data")
    container = podman("run", "--detach", *options, name, *stage).stdout.strip()
    try:
        for _ in range(600):
            if list(tmp_path.glob("model.work/checkpoints/step-*[0-9]/manifest.json")):
                break
            time.sleep(0.2)
        podman("kill", "--signal", "KILL", container)
        podman("wait", container)

        again = podman("run", "--rm", *options, name, *stage, timeout=600)
    finally:
        podman("rm", "--force", container)

    assert "resuming" in again.stderr
    lines = (tmp_path / "model/training.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 301))


def test_the_pipelines_image_compiles_the_dag() -> None:
    name = image("pipelines")

    script = "anadil compile smoke -f /tmp/pipeline.yaml >&2 && cat /tmp/pipeline.yaml"
    done = podman("run", *RESTRICTED, "--entrypoint", "sh", name, "-c", script)

    assert "anadil-adapt" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_an_image_holds_its_own_code_and_locked_packages_only(name: str) -> None:
    seen = inside(name)

    locked = {package.replace("_", "-"): version for package, version in pins(name).items()}
    ours = {} if name == "mlflow" else {"anadil": __version__}
    assert {package: v.removesuffix("+cpu") for package, v in seen["packages"].items()} == {
        package: version.removesuffix("+cpu") for package, version in (locked | ours).items()
    }
    folders = set() if name == "mlflow" else {room.split("/")[0] for room in rooms(name)} | {"recipes"}
    assert set(seen["folders"]) - {"__pycache__"} == folders
    # pip fetches the base of recipes/real.yaml.
    assert seen["programs"] == (["pip", "pip3"] if name == LAPTOP else [])
    assert seen["opt"] == ["anadil"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mlflow"])
def test_an_artifact_gets_the_same_key_in_an_image_as_in_a_checkout(name: str) -> None:
    digests = inside(name)["digests"]

    expected = [stage for stage in FLOW if stage.name in rooms(name)]
    assert digests == {stage.name: code_digest(stage) for stage in expected}, "build the images again"


@pytest.mark.parametrize("name", NAMES)
def test_an_image_says_what_it_is(name: str) -> None:
    config = inspected(name)["Config"]
    seen = inside(name)

    assert config["User"] == "10001:10001"
    assert config["Labels"]["org.opencontainers.image.title"] == f"anadil/{name}"
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert seen["environment"]["ANADIL_IMAGE"] == f"anadil/{name}:{__version__}"
    assert seen["environment"]["HOME"] == "/home/anadil"
    assert seen["python"] == "/opt/anadil/bin/python"
    assert (seen["user"], seen["home"], seen["home_group"]) == (12345, "0o775", 0)
    assert seen["uncompiled"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_bill_of_materials_lists_every_package(name: str) -> None:
    seen = inside(name)
    components = {
        (part["name"].lower().replace("_", "-"), part["version"]): part for part in seen["bill"]["components"]
    }

    assert seen["bill"]["bomFormat"] == "CycloneDX"
    assert {(package, version) for package, version in seen["packages"].items()} <= set(components)
    assert any(part["purl"].startswith("pkg:deb/debian/libc6@") for part in components.values())
    for package, version in seen["packages"].items():
        part = components[package, version]
        assert part["purl"].startswith("pkg:pypi/")
        assert package == "anadil" or len(part["hashes"][0]["content"]) == 64
    assert "file://" not in json.dumps(seen["bill"])


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_as_large_as_its_budget(name: str) -> None:
    budget = yaml.safe_load((FOLDER / "budget.yaml").read_text(encoding="utf-8"))

    size = inspected(name)["Size"] / 1e6

    limit = budget["megabytes"][name]
    assert 0.9 * limit <= size <= limit, "the guide shows the limit as the size"


def shared(names: Sequence[str]) -> int:
    """Layers at the bottom that all of the images have."""
    columns = zip(*(inspected(name)["RootFS"]["Layers"] for name in names), strict=False)
    return len(list(itertools.takewhile(lambda column: len(set(column)) == 1, columns)))


def test_all_images_share_the_clients_and_those_that_train_share_torch() -> None:
    """A lock and what it installs are two layers; the lock of an image without torch is another file."""
    in_all, in_three = shared((*STAGES, "tools")), shared([name for name in TORCH if name != LAPTOP])

    assert in_all >= 4
    assert in_three == in_all + 2


def test_the_last_words_of_a_failure_reach_the_termination_log(tmp_path: Path) -> None:
    words = tmp_path / "termination-log"
    words.touch()
    words.chmod(0o666)
    mount = ("--volume", f"{words}:/dev/termination-log")

    done = podman("run", *RESTRICTED, *mount, image("clean"), "--recipe", "no-such-recipe", code=2)

    last = json.loads(words.read_text())
    assert last["exit_code"] == 2
    assert "no-such-recipe" in last["message"]
    assert "\n".join(done.stderr.splitlines()[-1:]).startswith("{")


def test_the_server_answers_on_a_read_only_root(tmp_path: Path) -> None:
    name = image("mlflow")
    store = ["--backend-store-uri", "sqlite:////tmp/mlflow.db", "--artifacts-destination", "/tmp/artifacts"]
    store += ["--expose-prometheus", "/tmp/prometheus"]
    options = ("--read-only", "--user", "12345", "--tmpfs", "/tmp", "--publish", "127.0.0.1::5000")
    started = podman(
        "run", "--detach", *options, name, *store, "--host", "0.0.0.0", "--port", "5000", "--workers", "1"
    )
    container = started.stdout.strip()
    try:
        port = podman("port", container, "5000").stdout.strip().rsplit(":", 1)[1]

        status = 0
        for _ in range(120):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                    status = answer.status
                    break
            except OSError:
                time.sleep(1)

        assert status == 200, podman("logs", container).stderr[-2000:]
    finally:
        podman("rm", "--force", "--time", "5", container)
