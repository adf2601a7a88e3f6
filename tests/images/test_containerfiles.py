import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from anadil import __version__
from anadil.core.stages import FLOW, LAPTOP
from tests.images.files import FOLDER, NAMES, ROOT, STAGES, TORCH, pins, rooms

PACKAGE = ROOT / "components/anadil"
STARTS = {
    name: [
        f"anadil.{stage.name}.{part}"
        for stage in FLOW
        if stage.pod.image == name
        for part in ("__main__", "run")
    ]
    for name in STAGES
}
STARTS["clean-ray"] = ["anadil.launch.clean", "anadil.clean.run"]
COMMANDS = PACKAGE / "cli/main.py"  # The command `anadil`, which no image of a stage starts.
STAGE, MLFLOW = (
    (FOLDER / f"{name}.Containerfile").read_text(encoding="utf-8") for name in ("stage", "mlflow")
)
files = pytest.mark.parametrize("text", [STAGE, MLFLOW], ids=["stage", "mlflow"])


def path_of(module: str) -> Path | None:
    base = (ROOT / "components").joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def reached(*starts: str) -> set[Path]:
    """Files of our modules that the given ones load, inside functions too."""
    found: set[Path] = set()
    waiting = [path for module in starts if (path := path_of(module))]
    while waiting:
        path = waiting.pop()
        if path in found or path == COMMANDS:
            continue
        found.add(path)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # Imports for types alone load nothing.
        blocks = [each for each in ast.walk(tree) if isinstance(each, ast.If)]
        typed = {
            *(node for each in blocks if ast.unparse(each.test) == "TYPE_CHECKING" for node in ast.walk(each))
        }
        for node in {*ast.walk(tree)} - typed:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            waiting += [path for name in names if name.startswith("anadil") and (path := path_of(name))]
    return found


@pytest.mark.parametrize("name", STARTS)
def test_an_image_takes_every_room_that_its_entry_point_loads(name: str) -> None:
    needed = {path.relative_to(PACKAGE).as_posix() for path in reached(*STARTS[name])}

    held = tuple(f"{room}/" for room in rooms(name))
    assert {each for each in needed if "/" in each and not each.startswith(held)} <= {"cli/__init__.py"}


@pytest.mark.parametrize("name", STAGES)
def test_an_image_takes_no_other_stage(name: str) -> None:
    # The trial of tokenizers trains with pretrain's loop, and measures as these two do. Training encodes where nobody has.
    # A merge carries rows of embeddings as training makes them.
    # Sources are compared by clean's keys, new text by its statistics, replay writes as evaluate does, and distill scores.
    shares = {
        "pretrain": {"trial", "merge", "tokenizer", "evaluate"},
        "tokenizer": {"encode"},
        "clean": {"overlap", "admit"},
        "evaluate": {"replay", "distill"},
    }
    assert rooms(name) & {stage.name for stage in FLOW} == {name} | shares.get(name, set())
    # The tokenizer's choice counts the compute of the model, whose families need no torch.
    assert ("model" in rooms(name)) == (name in (*TORCH, "tokenizer"))


@pytest.mark.parametrize("name", ["tools", "pipelines", LAPTOP])
def test_tools_take_every_stage_because_they_read_inputs_and_compute_keys_as_stages_do(name: str) -> None:
    assert {stage.name for stage in FLOW} | {"launch", "plan", "model"} <= rooms(name)


@pytest.mark.parametrize("name", ["clean", "clean-ray", "pretrain", "tools", "pipelines", LAPTOP])
def test_a_build_leaves_the_rooms_of_the_image_and_finds_what_it_starts(name: str, tmp_path: Path) -> None:
    for folder in ("components", "pipelines"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    script = [sys.executable, str(FOLDER / "build/rooms.py"), name, str(tmp_path)]

    started = subprocess.run(script, capture_output=True, text=True, check=True).stdout

    package = tmp_path / "components/anadil"
    records = {package / stage.name / file for stage in FLOW for file in ("__init__.py", "stage.py")}
    records |= {package / stage.name / "need.py" for stage in FLOW if "need" in stage.brings}
    files = {path for path in package.rglob("*.*") if path.is_file()}
    left = {path.parent.relative_to(package).as_posix() for path in files - records}
    held = (*rooms(name), ".", "cli")
    modules = {"tools": "anadil", "pipelines": "anadil", LAPTOP: "anadil", "clean-ray": "anadil.launch.clean"}
    assert started == f"{modules.get(name, f'anadil.{name}')}\n"
    assert {each for each in left if not any(f"{each}/".startswith(f"{room}/") for room in held)} == set()
    assert records <= files
    assert {room for room in rooms(name) if not (package / room).is_dir()} == set()
    assert (tmp_path / "pipelines").is_dir() == (name in ("pipelines", LAPTOP))


def test_every_image_is_built_from_its_file_with_its_arguments(tmp_path: Path) -> None:
    """images/build.sh reads the names, and which of them hold torch, from the table of stages."""
    builder = tmp_path / "docker"
    builder.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase $1 in images | inspect) echo sha256:ab ;; esac\n'
    )
    builder.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"

    environment = {"PATH": path, "BUILDER": "docker", "SBOM": str(tmp_path / "sbom")}
    command = ["sh", "images/build.sh"]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)

    printed = re.findall(r"^  (\S+):", done.stdout, re.MULTILINE)
    assert sorted(printed) == sorted(NAMES), "a recipe takes no key of cluster.digests twice"
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("build ")]
    built = {re.findall(r"-t anadil/(\S+):", call)[0]: call for call in calls}
    assert set(built) == set(NAMES)
    for name, call in built.items():
        assert f"-f images/{'mlflow' if name == 'mlflow' else 'stage'}.Containerfile " in call
        assert f"TORCH={'cpu' if name in TORCH else 'none'} " in call
        stage, _, engine = name.partition("-")
        assert f"STAGE={stage} --build-arg ENGINE={engine} " in call
        assert ("FOLDER=/work " in call) == (name == LAPTOP)
        assert "BASE=docker.io/library/python@sha256:ab " in call
        assert "base.name=docker.io/library/python:3.11-slim-bookworm " in call
        assert "base.digest=sha256:ab " in call
    builder.write_text("#!/bin/sh\n")  # knows no digest
    refused = subprocess.run(
        command, cwd=ROOT, env={**environment, "PUSH": "1"}, check=False, capture_output=True, text=True
    )
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "give BASE=NAME@sha256:" in refused.stderr


@pytest.mark.parametrize(
    ("builder", "push", "fails"), [("podman", "", "images"), ("buildah", "", "from"), ("docker", "1", "push")]
)
def test_an_image_whose_store_or_push_fails_ends_the_build(
    builder: str, push: str, fails: str, tmp_path: Path
) -> None:
    """What such a builder prints is no digest, and a digest of the image before is another one's."""
    program = tmp_path / builder
    count = f'[ "$1" != {fails} ] || [ ! -e {tmp_path}/built ] || exit 125'
    program.write_text(
        f"#!/bin/sh\n{count}\ncase $1 in images | inspect | from) echo sha256:ab ;; run) > {tmp_path}/built ;; esac\n"
    )
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "BUILDER": builder, "PUSH": push, "BASE": "b@sha256:ab",
                   "SBOM": str(tmp_path / "sbom")}  # fmt: skip

    done = subprocess.run(
        ["sh", "images/build.sh", "clean", "tools"], cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )  # fmt: skip

    assert done.returncode
    assert "tools: sha256" not in done.stdout


@files
def test_no_image_lets_mlflow_run_what_a_pickle_says(text: str) -> None:
    from anadil.release.registry.client import QUIET
    from anadil.runtime.mlflow_sender import LIMITS

    assert "MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false" in text
    assert {each["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] for each in (LIMITS, QUIET)} == {"false"}


def test_each_image_has_a_largest_size() -> None:
    budget = yaml.safe_load((FOLDER / "budget.yaml").read_text(encoding="utf-8"))["megabytes"]

    assert set(budget) == set(NAMES)


@files
def test_every_download_is_checked_by_hash_and_no_index_is_named(text: str) -> None:
    installs = re.findall(r"(?:pip install|install\.sh (?:common|torch|packages))[^&\n]*", text)

    assert installs
    assert all("--require-hashes" in install for install in installs)
    assert not re.search(r"https?://|/etc/ssl", text.split("LABEL", maxsplit=1)[0])


def test_the_manifest_of_ray_names_the_version_in_the_image() -> None:
    from anadil.launch.kubernetes.clean_pods import RAY_VERSION

    manifest = yaml.safe_load((ROOT / "manifests/components/ray/raycluster.yaml").read_text(encoding="utf-8"))
    pods = [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]
    [image] = {pod["template"]["spec"]["containers"][0]["image"] for pod in pods}

    name = image.removeprefix("anadil/").removesuffix(f":{__version__}")
    assert manifest["spec"]["rayVersion"] == RAY_VERSION == pins(name)["ray"]
