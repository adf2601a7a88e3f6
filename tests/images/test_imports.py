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
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.chart import CASES, texts
from tests.images.files import ROOT, STAGES, pins
from tests.images.test_containerfiles import STARTS, reached
from tests.kit.marks import matrix, slow

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
@pytest.mark.parametrize("name", [each if each == "tools" else matrix(each) for each in STARTS_OF_IMAGES])
def test_a_module_of_a_held_package_loads_without_packages_that_the_image_lacks(name: str) -> None:
    imports = set().union(*map(foreign_imports, reached(*STARTS_OF_IMAGES[name])))

    assert ("mlflow", "MlflowClient") in imports
    assert failed_imports(name, imports) == {}


def test_a_module_that_needs_what_the_image_lacks_is_found() -> None:
    """It is in mlflow-skinny, which each image holds, and needs numpy."""
    assert "mlflow.models.utils:" in failed_imports("tools", {("mlflow.models.utils", "")})


OF_COMMANDS = {
    "watch": "anadil.watch.server", "launch": "anadil.cli.cluster.launch", "schedule": "anadil_pipelines.submit",
    "submit": "anadil_pipelines.submit", "run": "anadil.cli.runs.run", "chat": "anadil.cli.models.chat",
}  # fmt: skip
"""Command of `anadil` -> module that it loads before it does anything."""
SHOWN = re.compile(r"anadil/([\w-]+):[\w.]+ ([a-z]+)\b")


def containers(value: Any) -> Iterator[tuple[str, list[str]]]:
    """Image and words of each container of a document."""
    if isinstance(value, dict) and (image := re.search(r"anadil/([\w-]+)[:@]", str(value.get("image")))):
        command = value.get("command") or []
        words = command.split() if isinstance(command, str) else command
        yield image[1], [*map(str, (*words, *(value.get("args") or ())))]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from containers(each)


def target_of(image: str, words: list[str]) -> str:
    """Module, or code, that a container runs."""
    if words[:2] == ["python", "-c"]:
        return words[2]
    name, *rest = words[2:] if words[:2] == ["python", "-m"] else (f"anadil.{image}", *words)
    if name in ("anadil", "anadil.tools", "anadil.laptop", "anadil.launch"):
        return OF_COMMANDS["launch" if name == "anadil.launch" else rest[0]]
    return f"{name}.run" if (ROOT / "components" / name.replace(".", "/")).is_dir() else name


@pytest.mark.parametrize("images", [slow(("tools", "pipelines", "pretrain")), matrix((*STAGES, "laptop"))])
def test_what_charts_manifests_pipelines_and_guides_start_loads_in_its_image(images: tuple[str, ...]) -> None:
    files = [*ROOT.glob("manifests/**/*.yaml"), *ROOT.glob("tests/golden/**/*.yaml")]
    written = [each.read_text(encoding="utf-8") for each in files]
    written += [
        text for values in CASES.values() for name, text in texts(values).items() if name.endswith(".yaml")
    ]
    calls = [each for text in written for each in containers([*yaml.load_all(text, Loader=yaml.CSafeLoader)])]
    pages = (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
    shown = [each for page in pages for each in SHOWN.findall(page.read_text(encoding="utf-8"))]
    calls += [(image, ["python", "-m", "anadil", command]) for image, command in shown]
    targets = {(image, target_of(image, words)) for image, words in calls if image in images}

    assert ("pretrain", "anadil.merge.run") in targets
    assert ("tools" in images) == (("tools", OF_COMMANDS["watch"]) in targets)
    for image in {image for image, _ in targets}:
        modules = {(target, "") for name, target in targets if name == image and " " not in target}
        code = "\n".join(target for name, target in targets if name == image and " " in target)
        imported = [each for each in ast.walk(ast.parse(code)) if isinstance(each, ast.Import)]
        imports = modules | {(alias.name, "") for each in imported for alias in each.names}
        assert failed_imports(image, imports) == {}, image
