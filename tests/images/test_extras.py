"""Each command, and each value of a recipe, works with the packages of an extra or names the extra that brings what it lacks."""

import ast
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from anadil.cli.main import COMMANDS, STAGE_VERBS
from anadil.core import install
from anadil.core.errors import PreflightError
from anadil.core.stages import STAGES
from anadil.recipe import packages
from anadil.recipe.load import parse_recipe
from anadil.recipe.packages import NEEDS, PackageNeed
from anadil.runtime.environment import WATCH_HOST_VARIABLE
from tests.images.files import ROOT
from tests.kit.marks import matrix, slow

EXTRAS = [each for each in install.extras() if each not in ("dev", "site")]
COMES_WITH = {
    "botocore": "boto3", "kfp_server_api": "kfp", "pydantic_core": "pydantic", "sqlalchemy": "mlflow", "urllib3": "kubernetes",
}  # fmt: skip
"""Module that the product loads behind another one -> that one, whose package requires it."""
LINES = [
    "run smoke", "run smoke --runner docker", "run smoke --watch", *(f"{name} --self-test" for name in STAGES),
    "retrain smoke --plan", "watch --help", "watch --no-open --port 0", "list", "compare a b", "recipe list", "recipe show smoke",
    "recipe check smoke", "recipe schema", "recipe copy smoke my.yaml", "corpus import none --out corpus", "language list",
    "language learn xx none", "judge --help", "judge page none --between a b --out out", "judge votes none --key none",
    "bases smoke none", "plan smoke", "plan azerbaijani-1b", "compile none -f p.yaml", "submit none --dry-run", "schedule none --remove",
    "launch pretrain --recipe smoke --tokenizer t --tokens az=a --tokens en=b --backend pytorchjob", "status none", "logs none",
    "stop none", "chat --help", "chat none", "export --help", "export none --format hf --out out",
    "export none --format gguf --out out", "trace none", "remove none", "promote --help", "promote none", "rollback", "doctor",
    "doctor --cluster smoke", "clean plan --recipe smoke", "clean explain none", "clean diff a b", "clean teach none --out out",
    "clean verify none", "tokenizer inspect none", "tasks list az", "tasks fetch none",
]  # fmt: skip
NO_HOST = "203.0.113.1"
"""Where no server of pages can listen. Source: RFC 5737."""
HELPS = ("export --help",)
"""Help of a command whose options need packages."""
WORK = ["plan smoke", "recipe check smoke", "clean plan --recipe smoke", "tasks list az", "promote --help"]
"""Lines that the wheel alone can do."""
WALK = """
import json, os, sys, tempfile, traceback
import anadil.preflight.checks  # .4 s that nearly every command takes: here once, and not in each child
from anadil.cli.main import main

ends, nothing = {}, os.open(os.devnull, os.O_RDONLY)
for line in json.load(sys.stdin):
    with tempfile.TemporaryFile() as said:
        if not (child := os.fork()):
            for number, file in enumerate((nothing, said.fileno(), said.fileno())):
                os.dup2(file, number)
            try:
                code = main(line.split())
            except SystemExit as end:
                code = end.code or 0
            except BaseException:
                traceback.print_exc()
                code = 70
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        ends[line] = code, said.read().decode()
print(json.dumps(ends))
"""
Ends = dict[str, tuple[int, str]]
ADVISED = re.compile(r"not installed[^\n]*\n? *(?:; |-> )run [^\n]*\[(\w+)\]'")


def plain(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


INSTALLED = {plain(each.metadata["Name"]): each for each in distributions()}


@cache
def closure(*extras: str) -> frozenset[str]:
    """Names of the installed packages that the program requires with some extras."""
    found: dict[str, set[str]] = {}
    waiting = [("anadil", {"", *extras})]
    while waiting:
        name, asked = waiting.pop()
        if name not in INSTALLED or asked <= found.get(name, set()):
            continue
        found[name] = found.get(name, set()) | asked
        requirements = [Requirement(each) for each in INSTALLED[name].requires or ()]
        waiting += [
            (plain(each.name), {"", *each.extras})
            for each in requirements
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in asked)
        ]
    return frozenset(found)


def make_environment(folder: Path, *extras: str) -> Path:
    """Python of an environment with the packages of some extras, which are links to those of the tests."""
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python3*/site-packages")
    owners: dict[str, set[str]] = {}
    for name, each in INSTALLED.items():
        for file in each.files or ():
            owners.setdefault(file.parts[0], set()).add(name)
    for name in closure(*extras):
        root = Path(str(INSTALLED[name].locate_file("")))
        # A folder of one package is one link. Of one that several share, each file is.
        paths = [Path(each) for each in INSTALLED[name].files or ()]
        files = {Path(each.parts[0]) if len(owners[each.parts[0]]) == 1 else each for each in paths}
        for path in files:
            # Two packages may bring the same file, such as the beginning of a namespace.
            is_new = not (site / path).is_symlink()
            if is_new and path.parts[0] not in ("..", "__pycache__") and (root / path).exists():
                (site / path).parent.mkdir(parents=True, exist_ok=True)
                (site / path).symlink_to(root / path)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ends]:
    """Function that gives commands in the environment of some extras."""
    python = cache(lambda *extras: make_environment(tmp_path_factory.mktemp("environment"), *extras))

    def ends(lines: list[str], *extras: str) -> Ends:
        done = subprocess.run(
            [python(*extras), "-W", "ignore", "-c", WALK], input=json.dumps(lines), capture_output=True, text=True,
            check=True, cwd=tmp_path_factory.mktemp("work"), env=os.environ | {WATCH_HOST_VARIABLE: NO_HOST},
        )  # fmt: skip
        found: Ends = json.loads(done.stdout.splitlines()[-1])
        return found

    return ends


def imported_modules() -> Iterator[str]:
    """First names of the modules that the product imports, inside functions too."""
    for path in [*ROOT.glob("components/**/*.py"), *ROOT.glob("pipelines/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            yield from (name.partition(".")[0] for name in names)


def test_each_package_that_the_product_imports_is_named_by_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "is_installed", lambda _: False)
    base = {"anadil", "anadil_pipelines", "filelock", "pydantic", "python_calamine", "yaml", "zstandard"}
    foreign = (
        {COMES_WITH.get(each, each) for each in imported_modules()} - base - set(sys.stdlib_module_names)
    )

    lacking = {each for each in foreign if install.extra_with(each) not in EXTRAS}

    assert not lacking, "the end of a command without the package would be a bug's"


@pytest.mark.parametrize(
    "need",
    [each for each in NEEDS if each.extra and not each.only_if],
    ids=lambda each: f"{each.key}-{each.extra}",
)
def test_a_value_without_its_packages_is_refused_by_the_extra_that_brings_them(
    need: PackageNeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda _: False)
    value = {"float8_.*|mxfp8|nvfp4": "mxfp8", packages.TABLES: "[/data/a.parquet]"}.get(
        need.values, need.values
    )
    recipe = parse_recipe("", "r", [f"{need.key}={value}"])

    with pytest.raises(
        PreflightError, match=rf"{need.key}: .*, which is not installed; run .*\[{need.extra}\]'?, or set"
    ):
        packages.refuse_not_installed(recipe, need.stages)

    assert set(need.packages) <= {plain(each) for each in install.names_of(need.extra)}


def test_an_extra_that_brings_nothing_on_this_machine_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda _: False)
    monkeypatch.setattr(packages, "names_of", lambda _: set())
    recipe = parse_recipe("", "r", ["pretrain.kernels=liger"])

    with pytest.raises(
        PreflightError, match=r"it has no build for this machine; set pretrain\.kernels to auto"
    ):
        packages.refuse_not_installed(recipe, ["pretrain"])


def test_each_command_is_walked() -> None:
    assert {line.split()[0] for line in LINES} == set(COMMANDS)
    assert {(stage, verb) for stage, verbs in STAGE_VERBS.items() for verb in verbs} <= {
        (line.split()[0], line.split()[1]) for line in LINES if " " in line
    }


@pytest.mark.parametrize("extra", [slow(""), *map(matrix, EXTRAS)])
def test_a_command_works_with_an_extra_alone_or_names_the_one_to_install(
    extra: str, walk: Callable[..., Ends]
) -> None:
    if extra and (absent_here := install.missing_packages(extra)):
        pytest.skip(f"not installed here, so there is nothing to link: {', '.join(absent_here)}")
    # An environment with every stage would really run.
    ends = walk([line for line in LINES if extra != "laptop" or not line.startswith("run")], extra)

    assert {line: end for line, end in ends.items() if end[0] in (1, 70) or "Traceback" in end[1]} == {}
    absent = {line: ADVISED.findall(text) for line, (_, text) in ends.items() if "not installed" in text}
    assert {line: names for line, names in absent.items() if not names or set(names) - set(EXTRAS)} == {}
    if not extra:
        assert {line: ends[line] for line in WORK if ends[line][0]} == {}
        assert {f"{name} --self-test" for name in STAGES} <= absent.keys()
        assert [line for line in absent if line.endswith("--help")] == [*HELPS]


@pytest.mark.parametrize(
    "extra", [slow("report"), *map(matrix, (each for each in EXTRAS if each != "report"))]
)
def test_what_a_command_advises_brings_what_it_lacks(extra: str, walk: Callable[..., Ends]) -> None:
    advised = [line for line, (_, text) in walk(LINES, "").items() if extra in ADVISED.findall(text)]
    again = walk([line for line in advised if not line.startswith("run")], "", extra)

    assert {
        line: end for line, end in again.items() if end[0] in (1, 70) or extra in ADVISED.findall(end[1])
    } == {}
