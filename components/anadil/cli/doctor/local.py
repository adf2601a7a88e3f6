"""What a run needs from this machine, checked before it starts; each line has its remedy."""

import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

from anadil.artifacts import local_directory, storage
from anadil.artifacts.base_model import TINY
from anadil.core.errors import AnadilError, PreflightError
from anadil.core.format import GIB, counted, human_bytes
from anadil.core.install import install
from anadil.core.log import masked
from anadil.core.stages import FLOW
from anadil.plan.instances import ram_bytes
from anadil.plan.preflight import check_fits
from anadil.preflight.inputs import Inspection, inspect_base, inspect_clean_cost, inspect_files
from anadil.preflight.tasks import inspect_tasks
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.job import is_left_out
from anadil.runtime.mlflow_spool import tracking_uri
from anadil.runtime.threads import check_shared_locks, num_cores

MIN_FREE_BYTES = 2 * GIB
"""What `smoke` writes is far less; a real run is checked by its plan."""
IMPORT_NAMES = {
    "fasttext-predict": "fasttext",
    "mlflow-skinny": "mlflow",
    "pyyaml": "yaml",
    "liger-kernel": "liger_kernel",
    "kfp-kubernetes": "kfp.kubernetes",
    "tensorboardx": "tensorboardX",
}
STATUS_MARKS = {"passed": "ok     ", "failed": "FAILED ", "skipped": "skipped"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One thing that a run needs."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    detail: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)

    def as_lines(self) -> Iterator[str]:
        """For people."""
        yield f"{STATUS_MARKS[self.status]}  {self.name}: {self.detail}"
        if self.remedy:
            yield from f"         -> {self.remedy}".split("\n")


def passed(name: str, detail: str, remedy: str = "") -> CheckResult:
    """A need that is met; the remedy is advice."""
    return CheckResult(name=name, status="passed", detail=detail, remedy=remedy)


def failed(name: str, detail: str, remedy: str) -> CheckResult:
    """A need that is not met."""
    return CheckResult(name=name, status="failed", detail=detail, remedy=remedy)


def skipped(name: str, detail: str, remedy: str = "") -> CheckResult:
    """A need that was not checked."""
    return CheckResult(name=name, status="skipped", detail=detail, remedy=remedy)


def run_checks(recipe_name: str, overrides: Sequence[str], work: Path) -> list[CheckResult]:
    """Check Python, packages, recipe, data, base model, storage, tracking and devices."""
    checks = [_python(), _packages()]
    try:
        recipe = load_recipe(recipe_name, overrides)
    except AnadilError as error:
        return [
            *checks,
            failed("recipe", str(error), "edit the recipe, or --set"),
        ]
    checks.append(passed("recipe", recipe_name))
    # A recipe of a cluster may name places that its pods alone see.
    checks += check_data(recipe, here=not recipe.cluster.volumes)
    checks += _clean_cost(recipe)
    checks += [_memory(recipe), _storage(recipe, work), *_shared_locks(), _tracking(recipe, work), _device()]
    return checks


def missing_packages(extra: str) -> list[str]:
    """Packages of one of this program's extras that are not installed.

    Args:
        extra: Such as `clean` or `laptop`; extras that it includes count too.
    """
    missing = []
    for name in sorted(_names_of(extra)):
        module = IMPORT_NAMES.get(name, name.replace("-", "_"))
        try:
            found = importlib.util.find_spec(module.split(".")[0])
        except (ImportError, ValueError):
            found = None
        if found is None:
            missing.append(name)
    return missing


def require_packages(extra: str) -> None:
    """Refuse to go on without the packages of one of this program's extras.

    Raises:
        PreflightError: One is not installed.
    """
    if absent := missing_packages(extra):
        raise PreflightError(f"not installed: {', '.join(absent)}; {install(extra)}")


def _names_of(extra: str) -> set[str]:
    names: set[str] = set()
    for line in metadata.requires("anadil") or ():
        requirement, _, marker = line.partition(";")
        if not re.search(rf"extra == ['\"]{extra}['\"]", marker):
            continue
        if "platform_machine" in marker and (sys.platform, platform.machine()) != ("linux", "x86_64"):
            continue
        match = re.match(r"\s*([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?", requirement)
        assert match
        name, inner = match.group(1), match.group(2)
        if name == "anadil":
            for part in inner.split(","):
                names |= _names_of(part.strip())
        else:
            names.add(name.lower())
    return names


def _python() -> CheckResult:
    version = ".".join(map(str, sys.version_info[:3]))
    return passed("python", f"{version} at {sys.prefix}")


def _packages() -> CheckResult:
    missing = missing_packages("laptop")
    if missing:
        return failed("packages", f"missing {', '.join(missing)}", install("laptop"))
    return passed("packages", "every stage's packages are installed")


def check_data(recipe: Recipe, *, here: bool) -> Iterator[CheckResult]:
    """Check the files of every stage and the base model.

    Args:
        recipe: What is to run.
        here: On this machine; else what cannot be seen from here is no mistake.
    """
    for stage in FLOW:
        if not stage.files:
            continue
        if is_left_out(stage, recipe):
            yield skipped(stage.files, "no chats, so no finetuning")
            continue
        yield _inspection_check(stage.files, partial(inspect_files, stage, recipe, here=here))
    if recipe.evaluate.tasks:
        yield _inspection_check("evaluate.tasks", partial(inspect_tasks, recipe))
    yield _base(recipe, here=here)


def _base(recipe: Recipe, *, here: bool) -> CheckResult:
    model, name = recipe.base.model, "base.model"
    on_the_hub = model != TINY and not model.startswith(("/", ".", "~")) and not Path(model).is_dir()
    offline = os.environ.get("HF_HUB_OFFLINE") == "1"
    if on_the_hub and (offline or not _answers("huggingface.co", 443)):
        remedy = "download it where there is a network and give the directory as base.model"
        detail = f"{model}: the hub cannot be reached{'' if here else ' from here'}"
        return CheckResult(name=name, status="failed" if here else "skipped", detail=detail, remedy=remedy)
    check = _inspection_check(name, partial(inspect_base, recipe, here=here))
    if on_the_hub and check.status == "passed" and not recipe.base.revision:
        return replace(check, remedy="set base.revision, so that the run can be repeated")
    return check


def _inspection_check(key: str, inspect: Callable[[], Inspection]) -> CheckResult:
    try:
        found = inspect()
    except AnadilError as error:
        # Messages end in their remedy, and some begin with the key, which stands before the line anyway.
        fault, _, remedy = str(error).removeprefix(f"{key}: ").rpartition("; ")
        return failed(key, fault, remedy) if fault else failed(key, remedy, f"correct {key}")
    status: Literal["passed", "skipped"] = "passed" if found.visible else "skipped"
    return CheckResult(name=key, status=status, detail=found.detail, remedy=found.remedy)


def _clean_cost(recipe: Recipe) -> Iterator[CheckResult]:
    check = _inspection_check("cost of clean", partial(inspect_clean_cost, recipe, ram_bytes(), num_cores()))
    if check.status != "failed":  # a file that is not there is reported in a line of its own
        yield check


def _memory(recipe: Recipe) -> CheckResult:
    try:
        detail = check_fits(recipe, here=True)
    except PreflightError as error:
        first, _, rest = str(error).partition("\n")
        return failed("memory", first, rest.strip())
    except AnadilError as error:
        remedy = "see the message; anadil plan tells more"
        return failed("memory", str(error), remedy)
    return passed("memory", detail)


def _storage(recipe: Recipe, work: Path) -> CheckResult:
    root = recipe.storage.root or str(work)
    if "://" in root:
        try:
            storage.store(root).directories(root)
        except AnadilError as error:
            return failed("storage", str(error), "see the message")
        return passed("storage", f"{root} can be listed")
    try:
        local_directory.check_writable(Path(root), "storage.root" if recipe.storage.root else "--work")
    except AnadilError as error:
        return failed("storage", str(error), "choose another --work")
    there = next(path for path in (Path(root), *Path(root).parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    enough = free >= MIN_FREE_BYTES
    return CheckResult(
        name="storage",
        status="passed" if enough else "failed",
        detail=f"{root} ({human_bytes(free)} free)",
        remedy="" if enough else f"free {human_bytes(MIN_FREE_BYTES)} or choose another --work",
    )


def _shared_locks() -> Iterator[CheckResult]:
    try:
        check_shared_locks()
    except PreflightError as error:
        place, _, rest = str(error).partition(": ")
        detail, _, remedy = rest.partition("; ")
        detail += "; cleaning and short texts need none, longer ones do"
        yield CheckResult(name=place, status="passed", detail=detail, remedy=remedy)


def _tracking(recipe: Recipe, work: Path) -> CheckResult:
    try:
        uri = tracking_uri(recipe, default=f"sqlite:///{work}/mlflow.db")
    except AnadilError as error:
        remedy = "correct the variable, or set tracking.uri"
        return failed("tracking", str(error), remedy)
    if uri is None:
        return skipped("tracking", "off")
    parts = urlparse(uri)
    if parts.scheme not in ("http", "https"):
        return passed("tracking", masked(uri))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if _answers(parts.hostname or "", port):
        return passed("tracking", f"{parts.scheme}://{parts.hostname}:{port} answers")
    # A run does not need it: what cannot be sent is kept and sent later.
    remedy = "start the server, or ignore it: the run keeps its tracking and sends it later"
    return skipped("tracking", f"{parts.hostname}:{port} does not answer", remedy)


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=3):
            return True
    except OSError:
        return False


def _device() -> CheckResult:
    gpus = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if gpus:
        return passed("device", counted(len(gpus), "GPU"))
    cores = os.cpu_count() or 1
    return passed("device", f"no GPU; {cores} CPU cores: fit for `smoke`, not for 1B")
