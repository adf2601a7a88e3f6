"""What an image can load of its packages, inside functions too, needs no package that the image lacks.

Whole packages that an image lacks are the subject of `test_a_stage_imports_only_what_its_own_extra_installs`; here it is
modules of packages that are there, as those of mlflow-skinny that need numpy.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.chart import CASES, texts
from tests.images.files import NAMES, ROOT, STAGES, pins
from tests.images.test_containerfiles import STARTS, reached
from tests.kit.marks import matrix

SENDER = "anadil.runtime.mlflow_sender"  # A process of its own, which no import names.
# Only the parts of `tools` that run by themselves; its commands name a missing package.
STARTS_OF_IMAGES = {
    **{name: [*STARTS[name], SENDER] for name in STAGES},
    "tools": [SENDER, "anadil.report.run"],
}

LOAD = """
import importlib, importlib.machinery, importlib.metadata, importlib.util, json, re, sys

held, imports = json.loads(sys.stdin.read())
brings = importlib.metadata.packages_distributions()
missing = {
    name for name, distributions in brings.items()
    if not name.startswith("anadil") and not any(re.sub("[-_.]+", "-", each).lower() in held for each in distributions)
}

class Held(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in missing:
            return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Held
failed = {}
for module, name in imports:
    package = module.partition(".")[0]
    if package in missing or importlib.util.find_spec(package) is None:
        continue
    try:
        loaded = importlib.import_module(module)
        if name and not hasattr(loaded, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        failed[f"{module}:{name}"] = str(error)
print(json.dumps(failed))
"""


def is_guarded(node: ast.Try) -> bool:
    """Whether a block does without what it cannot import."""
    names = {each.id for handler in node.handlers for each in ast.walk(handler) if isinstance(each, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError"})


def foreign_imports(path: Path) -> set[tuple[str, str]]:
    """Modules of others that a file of ours loads, with the name that it takes of each."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    spared = {
        id(each)
        for block in ast.walk(tree)
        if (isinstance(block, ast.Try) and is_guarded(block))
        or (isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test))
        for each in ast.walk(block)
    }
    found: set[tuple[str, str]] = set()
    for node in ast.walk(tree):
        if id(node) in spared:
            continue
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {(node.module, alias.name) for alias in node.names}
    return {each for each in found if each[0].partition(".")[0] not in {"anadil", *sys.stdlib_module_names}}


def failed_imports(image: str, imports: set[tuple[str, str]]) -> dict[str, str]:
    """Imports that fail where only the packages of an image are installed, with the reason of each."""
    given = json.dumps([sorted(pins(image)), sorted(imports)])
    command = [sys.executable, "-W", "ignore", "-c", LOAD]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    failed: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return failed


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [each if each in ("clean", "pretrain", "tools") else matrix(each) for each in STARTS_OF_IMAGES]
)
def test_a_module_of_a_held_package_loads_without_packages_that_the_image_lacks(name: str) -> None:
    imports = set().union(*map(foreign_imports, reached(*STARTS_OF_IMAGES[name])))

    assert ("mlflow", "MlflowClient") in imports
    assert failed_imports(name, imports) == {}


def test_a_module_that_needs_what_the_image_lacks_is_found() -> None:
    """It is in mlflow-skinny, which each image holds, and needs numpy."""
    assert "mlflow.models.utils:" in failed_imports("tools", {("mlflow.models.utils", "")})


OF_COMMANDS = {
    "watch": "anadil.watch.server",
    "launch": "anadil.cli.cluster.launch",
    **dict.fromkeys(("schedule", "submit"), "anadil_pipelines.submit"),
    "run": "anadil.cli.runs.run",
    "chat": "anadil.cli.models.chat",
}
"""Command of `anadil` that a chart, a manifest, a pipeline or a guide starts -> module that it loads before it does anything."""


def containers(value: Any) -> Iterator[tuple[str, list[str]]]:
    """Image and words of each container that a document holds, at any depth."""
    if isinstance(value, dict):
        image = (
            re.search(r"anadil/([\w-]+)[:@]", value["image"]) if isinstance(value.get("image"), str) else None
        )
        if image and image[1] in NAMES:
            command = value.get("command") or []
            words = command.split() if isinstance(command, str) else [*command]
            yield image[1], [str(each) for each in (*words, *(value.get("args") or []))]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from containers(each)


@cache
def started() -> frozenset[tuple[str, str]]:
    """Image, and module or code, of everything that charts, manifests, pipelines, jobs and guides start."""
    files = [*ROOT.glob("manifests/**/*.yaml"), *ROOT.glob("tests/golden/**/*.yaml")]
    charts = [
        text for values in CASES.values() for name, text in texts(values).items() if name.endswith(".yaml")
    ]
    written = [each.read_text(encoding="utf-8") for each in files] + charts
    documents = [each for text in written for each in yaml.load_all(text, Loader=yaml.CSafeLoader)]
    calls = [*containers(documents)]
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        shown = re.findall(r"anadil/([\w-]+):[\w.]+ ([a-z]+)\b", page.read_text(encoding="utf-8"))
        calls += [(image, ["python", "-m", "anadil", command]) for image, command in shown if image in NAMES]
    return frozenset((image, target) for image, words in calls if (target := target_of(image, words)))


def target_of(image: str, words: list[str]) -> str:
    """Module, or code, that a container runs; empty for a program that is not ours."""
    if words[:2] == ["python", "-c"]:
        return words[2]
    name, *rest = words[2:] if words[:2] == ["python", "-m"] else (f"anadil.{image}", *words)
    if name in ("anadil", "anadil.tools", "anadil.pipelines", "anadil.laptop"):
        return OF_COMMANDS[rest[0]]
    if words[:1] in (["mlflow"], ["ray"]) or image == "mlflow":
        return ""
    folder = ROOT / "components" / name.replace(".", "/")
    return OF_COMMANDS["launch"] if name == "anadil.launch" else f"{name}.run" if folder.is_dir() else name


@pytest.mark.slow
@pytest.mark.parametrize("image", sorted({*STAGES, "tools", "pipelines", "laptop"} - {"tasks"}))
def test_what_charts_manifests_pipelines_and_guides_start_loads_in_its_image(image: str) -> None:
    targets = {target for name, target in started() if name == image}
    code = {target for target in targets if not re.fullmatch(r"[\w.]+", target)}
    imports = {(each, "") for each in targets - code}
    for text in code:
        nodes = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Import | ast.ImportFrom)]
        imports |= {
            (name, "") for each in nodes
            for name in ([alias.name for alias in each.names] if isinstance(each, ast.Import) else [each.module or ""])
        }  # fmt: skip

    assert targets, "nothing starts this image"
    assert failed_imports(image, imports) == {}
    assert image != "tools" or "anadil.watch.server" in targets
