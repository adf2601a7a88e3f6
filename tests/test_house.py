"""Rules of the house that no linter checks."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from anadil.core.stages import FLOW, STAGES

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "components").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")])
MAX_LINES = 600
LIGHT_STAGES = ("clean", "report")
HEAVY = {"torch", "transformers", "kfp", "mlflow"}
MODEL_TESTS = (
    "bases/",
    "distill/",
    "encode/",
    "evaluate/",
    "finetune/",
    "merge/",
    "model/",
    "pipelines/",
    "plan/memory/",
    "preflight/test_bad_bases.py",
    "pretrain/",
    "release/",
    "replay/",
    "retrain/",
    "tasks/",
    "tokenizer/test_pieces.py",
    "tokens/",
    "trial/",
)
"""Whose subject is a heavy library; all others load one, if at all, in the test that needs it."""
SHARED_EXTRAS = ("s3", "tracking", "terminal")
"""What any stage may load where it is installed."""
IMPORT_NAMES = {
    "fasttext-predict": "fasttext",
    "liger-kernel": "liger_kernel",
    "pyyaml": "yaml",
    "jinja2": "jinja2",
    "lm-eval": "lm_eval",
    "mlflow-skinny": "mlflow",
}
BROUGHT_ALONG = {
    "transformers": {"huggingface_hub", "numpy", "safetensors", "tokenizers"},
    "jinja2": {"markupsafe"},
    "torch": {"jinja2"},
}
"""What a package of an extra requires itself."""
OPTIONAL = {"liger_kernel", "torchao", "sqlalchemy"}
"""Used where it is installed."""
MACHINE_PATH = re.compile(r"/(?:home|Users|mnt)/(?!leyla/|anadil/)[a-z]+/")
"""Leyla is the user of the examples, anadil that of the images."""


def tracked() -> Iterator[tuple[str, str]]:
    """Name and text of every file that git keeps, but for binary ones."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" not in content[:8000]:
            yield name, content.decode(errors="replace")


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file, which several tests walk."""
    return ast.parse(path.read_text(encoding="utf-8"))


def public(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


def test_every_module_and_public_name_says_what_it_is() -> None:
    silent = []
    for path in SOURCES:
        tree = parsed(path)
        name = str(path.relative_to(ROOT))
        silent += [f"{name}: {node.name}" for node in public(tree.body) if not ast.get_docstring(node)]
        if tree.body and path.name != "__init__.py" and not ast.get_docstring(tree):
            silent.append(name)

    assert silent == []


def test_no_file_is_long() -> None:
    tests = (ROOT / "tests").rglob("*.py")
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in [*SOURCES, *tests]
    }

    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


MAX_PRODUCT, MAX_TESTS = 99_917, 89_160  # hybrids in the planner, joined files of several encodings
"""Lines of `components` and `pipelines`, and of `tests`. A feature that needs more is paid for by what goes."""


def test_product_and_tests_stay_small() -> None:
    tests = sorted((ROOT / "tests").rglob("*.py"))
    product, checks = (sum(path.read_bytes().count(b"\n") for path in paths) for paths in (SOURCES, tests))

    assert product <= MAX_PRODUCT
    assert checks <= MAX_TESTS


def test_no_file_speaks_of_unfinished_work_or_of_somebodys_machine() -> None:
    words = re.compile("TO" + "DO|FIX" + "ME|XX" + "X|<<<<" + "<<< HEAD")

    found = [
        f"{name}: {match.group()}"
        for name, text in tracked()
        if name != "tests/test_house.py" and not name.startswith(".ci/")
        for match in [words.search(text) or MACHINE_PATH.search(text)]
        if match
    ]

    assert found == []


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}

    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def packages(*extras: str) -> set[str]:
    """Import names of the packages of some extras, and of what every installation has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def of(extra: str) -> list[str]:
        found: list[str] = []
        for line in project["optional-dependencies"][extra]:
            ours = re.fullmatch(r"anadil\[(.*)\]", line)
            found += [each for name in ours[1].split(",") for each in of(name)] if ours else [line]
        return found

    lines = [*project["dependencies"], *(line for extra in extras for line in of(extra))]
    names = {re.split(r"[^\w.-]", line)[0].lower() for line in lines}
    found = {IMPORT_NAMES.get(name, name) for name in names}
    return found.union(*(BROUGHT_ALONG.get(name, set()) for name in names))


def imported(folder: Path, *parts: str) -> set[str]:
    """Top-level names of what the modules of a folder, or of some of its parts, import, their functions included."""
    names: set[str] = set()
    files = [file for part in parts for file in folder.glob(part)] or folder.rglob("*.py")
    for path in files:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"anadil"}


PARTS = {"release": ("__main__.py", "run.py", "release_record.py", "registry/*.py")}
"""Stage -> its modules, where its room holds more: what is done with a finished model by other commands."""


def test_a_stage_imports_only_what_its_image_installs() -> None:
    folder = ROOT / "components/anadil"
    foreign = {}
    for stage in FLOW:
        used = imported(folder / stage.name, *PARTS.get(stage.name, ()))
        used |= imported(folder / "model") if stage.pod.uses_model else set()
        foreign[stage.name] = used - packages(stage.pod.image, *SHARED_EXTRAS) - OPTIONAL

    assert foreign == {stage.name: set() for stage in FLOW}


MAX_NAMING = 3
"""Records and tables that name a stage or its artifact. The others go by a role, so that a stage is a place."""


@pytest.mark.parametrize("name", ["merge", "overlap", "replay", "trial"])
def test_a_stage_is_named_in_few_records(name: str) -> None:
    words = {name, STAGES[name].writes}
    records = [
        *(ROOT / "components/anadil").glob("*/stage.py"),
        *(ROOT / "components/anadil/core").glob("*.py"),
    ]

    naming = [
        path.relative_to(ROOT).as_posix()
        for path in records
        if path.parent.name != name
        and any(isinstance(node, ast.Constant) and node.value in words for node in ast.walk(parsed(path)))
    ]

    assert len(naming) <= MAX_NAMING, naming


LOADS_BY_NAME = {
    "anadil/__init__.py": "the names that the package offers, each when it is asked for",
    "anadil/cli/main.py": "a command, so that `anadil --help` loads no other",
    "anadil/core/stages.py": "the record of each stage, which imports none of its modules",
    "anadil/core/measures.py": "the measure and the view of each row, for evaluation and the report",
    "anadil/core/imports.py": "what its callers name, of which this test asks too",
    "anadil/runtime/entry_point.py": "the stage of a self-test",
    "anadil/runtime/execute.py": "the stage, when its artifact has to be made",
    "anadil/text/language_pack.py": "functions of a shipped pack, which names their module",
}
"""File -> what of ours it loads through a string. The import contracts cannot see these: none may cross a layer upwards."""


def loads_ours_by_name(path: Path) -> bool:
    """Whether a file gives an importing function a name of ours, or one that only the running program knows."""
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name not in ("import_module", "load_module", "__import__", "find_spec", "run_module"):
            continue
        text = ast.unparse(node.args[0])
        is_constant = isinstance(node.args[0], ast.Constant)
        if name in ("import_module", "load_module", "__import__") and (not is_constant or "anadil" in text):
            return True
        if name in ("find_spec", "run_module") and "anadil" in text:
            return True
    return False


def test_only_entry_points_load_modules_of_ours_by_name() -> None:
    loading = {
        path.relative_to(root).as_posix()
        for root in (ROOT / "components", ROOT / "pipelines")
        for path in root.rglob("*.py")
        if loads_ours_by_name(path)
    }

    assert loading == set(LOADS_BY_NAME)


@pytest.mark.parametrize("stage", LIGHT_STAGES)
def test_a_light_stage_can_load_what_it_needs_and_nothing_more(stage: str) -> None:
    code = (
        f"import sys, runpy\nsys.argv = ['anadil.{stage}', '--self-test']\n"
        f"try:\n    runpy.run_module('anadil.{stage}', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        f"assert not {HEAVY!r} & set(sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"{stage}: ready\n")


@pytest.mark.slow
def test_tests_that_need_no_model_are_collected_without_heavy_libraries() -> None:
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    modules = [
        ".".join(path.with_suffix("").parts)
        for path in paths
        if not path.as_posix().startswith(tuple(f"tests/{place}" for place in MODEL_TESTS))
    ]
    # Commands, too: who installs the tools alone has none of these libraries.
    root = ROOT / "components"
    modules += [
        ".".join(path.relative_to(root).with_suffix("").parts) for path in (root / "anadil/cli").rglob("*.py")
    ]
    code = (
        "import importlib, sys\n"
        f"for name in ['tests.conftest', *{modules!r}]:\n"
        "    importlib.import_module(name)\n"
        f"    assert not {HEAVY!r} & set(sys.modules), name"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'scripts'}"}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-2000:]


def test_the_files_that_begin_first_are_there() -> None:
    from tests.conftest import LONGEST

    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
