import ast
import re
from pathlib import Path

import pytest

from anadil.core.stages import FLOW
from tests.images.files import FOLDER, NAMES, ROOT, STAGES, TORCH, containerfile, copied

PACKAGE = ROOT / "components/anadil"
STARTS = {
    **{name: (f"anadil.{name}.__main__", f"anadil.{name}.run") for name in STAGES},
    "pipelines": (
        *(
            f"anadil_pipelines.{path.stem}"
            for path in sorted((ROOT / "pipelines/anadil_pipelines").glob("*.py"))
        ),
        "anadil.cli.doctor.local",
    ),
}
STARTS["pretrain"] += ("anadil.cli.calibrate.__main__", "anadil.cli.calibrate.worker")
OURS = {name: f'"python", "-m", "anadil.{name}"' for name in STAGES}
ENTRYPOINTS = OURS | {
    "tools": '"python", "-m", "anadil"',
    "pipelines": '"python", "-m", "anadil"',
    "mlflow": '"mlflow", "server"',
}


def path_of(module: str) -> Path | None:
    """The file of one of our modules."""
    base = (ROOT / "pipelines" if module.startswith("anadil_pipelines") else ROOT / "components").joinpath(
        *module.split(".")
    )
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def reached(*starts: str) -> set[Path]:
    """Files of our modules that the given ones load, inside functions too."""
    found: set[Path] = set()
    waiting = [path for module in starts if (path := path_of(module))]
    while waiting:
        path = waiting.pop()
        if path in found or path == PACKAGE / "cli/main.py":
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            waiting += [path for name in names if name.startswith("anadil") and (path := path_of(name))]
    return found


@pytest.mark.parametrize("name", STARTS)
def test_an_image_takes_every_folder_that_its_entry_point_loads(name: str) -> None:
    needed = {
        path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "."
        for path in reached(*STARTS[name])
        if path.is_relative_to(PACKAGE)
    }

    assert needed - copied(name) == set()


@pytest.mark.parametrize("name", STAGES)
def test_an_image_takes_no_other_stage(name: str) -> None:
    stages = {stage.name for stage in FLOW}

    assert copied(name) & stages == {name}
    assert {".", "builtin", "core", "recipe", "text", "artifacts", "runtime"} <= copied(name)
    assert ("model" in copied(name)) == (name in TORCH)


def test_the_tools_take_every_stage_because_a_launcher_computes_the_artifacts_keys() -> None:
    assert {stage.name for stage in FLOW} | {"launch", "plan", "model"} <= copied("tools")


def test_the_pipelines_take_every_stage_because_a_submission_reads_inputs_as_stages_do() -> None:
    assert {stage.name for stage in FLOW} | {"launch", "plan", "model"} <= copied("pipelines")


def test_every_folder_with_a_containerfile_is_built() -> None:
    script = (FOLDER / "build.sh").read_text(encoding="utf-8")

    listed = re.search(r'names="([^"]*clean[^"]*)"', script)

    assert listed
    assert (
        set(listed.group(1).split())
        == set(NAMES)
        == {path.parent.name for path in FOLDER.glob("*/Containerfile")}
    )


def test_the_lines_that_images_share_are_the_same() -> None:
    """Equal lines are one layer: made once, pulled once by a node."""
    texts = {name: containerfile(name).split("ARG BASE")[1] for name in NAMES}
    builds = {text.split("\n\n")[1] for text in texts.values()}
    runtimes = {text.split("AS runtime\n")[1].split("HF_HUB")[0] for text in texts.values()}
    torches = {texts[name].split("AS runtime\n")[1].split("COPY images/" + name)[0] for name in TORCH}

    commons = {text.split("AS runtime\n")[1].rpartition("locks/common.txt\n")[0] for text in texts.values()}

    assert len(builds) == len(runtimes) == len(commons) == len(torches) == 1
    assert "requirements-${TORCH}.txt" in torches.pop()


@pytest.mark.parametrize("name", NAMES)
def test_an_image_runs_as_a_numbered_user_with_one_entry_point(name: str) -> None:
    text = containerfile(name)
    final = text.split("\nFROM ")[-1]

    assert final.startswith("runtime\n")
    assert "\nUSER 10001:10001\n" in final
    assert re.findall(r"^ENTRYPOINT \[(.*)\]$", text, re.MULTILINE) == [ENTRYPOINTS[name]]
    assert "\nCMD" not in text
    assert f"ENV ANADIL_IMAGE=anadil/{name}:${{VERSION}}\n" in final
    for label in ("title", "description", "source", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in final


@pytest.mark.parametrize("name", NAMES)
def test_every_download_is_checked_by_hash_and_no_index_is_named(name: str) -> None:
    text = containerfile(name)

    installs = re.findall(r"(?:pip install|install\.sh (?:common|torch|packages))[^&\n]*", text)

    assert installs
    assert all("--require-hashes" in install for install in installs)
    assert not re.search(r"https?://|/etc/ssl", text.split("LABEL")[0])
