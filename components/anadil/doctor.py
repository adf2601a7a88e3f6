"""What a run needs from this machine, checked before it starts; each line has its remedy."""

import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

from anadil import storage
from anadil.base import TINY
from anadil.config import Recipe
from anadil.errors import AnadilError, PreflightError
from anadil.flow import FLOW
from anadil.log import masked
from anadil.plan.preflight import check_fits
from anadil.recipe import load_recipe
from anadil.stage import check_base, external_files, is_left_out
from anadil.tracking import tracking_uri
from anadil.units import GIB, human_bytes

MIN_FREE_BYTES = 2 * GIB
"""What `smoke` writes is far less; a real run is checked by its plan."""
IMPORT_NAMES = {
    "mlflow-skinny": "mlflow",
    "pyyaml": "yaml",
    "liger-kernel": "liger_kernel",
    "kfp-kubernetes": "kfp.kubernetes",
    "tensorboardx": "tensorboardX",
}
MARKS = {"passed": "ok     ", "failed": "FAILED ", "skipped": "skipped"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that a run needs."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    detail: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)

    def as_text(self) -> str:
        """One line for people."""
        remedy = f"\n         -> {self.remedy}" if self.remedy else ""
        return f"{MARKS[self.status]}  {self.name}: {self.detail}{remedy}"


def examine(recipe_name: str, overrides: Sequence[str], work: Path) -> list[Check]:
    """Check Python, packages, recipe, data, base model, storage, tracking and devices."""
    checks = [_python(), _packages()]
    try:
        recipe = load_recipe(recipe_name, overrides)
    except AnadilError as error:
        return [*checks, Check(name="recipe", status="failed", detail=str(error), remedy="edit the recipe")]
    checks.append(Check(name="recipe", status="passed", detail=recipe_name))
    checks += _data(recipe)
    checks += [_base(recipe), _memory(recipe), _storage(recipe, work), _tracking(recipe, work), _device()]
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


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check(name="python", status="passed", detail=f"{version} at {sys.prefix}")


def _packages() -> Check:
    missing = missing_packages("laptop")
    if missing:
        remedy = "pip install 'anadil[laptop]'"
        return Check(name="packages", status="failed", detail=f"missing {', '.join(missing)}", remedy=remedy)
    return Check(name="packages", status="passed", detail="every stage's packages are installed")


def _data(recipe: Recipe) -> Iterator[Check]:
    for stage in FLOW:
        if not stage.files:
            continue
        if is_left_out(stage, recipe):
            yield Check(name=stage.files, status="skipped", detail="no chats, so no finetuning")
            continue
        try:
            files = external_files(stage, recipe)
        except AnadilError as error:
            yield Check(name=stage.files, status="failed", detail=str(error), remedy=f"correct {stage.files}")
            continue
        if files:
            yield Check(name=stage.files, status="passed", detail=f"{len(files)} file(s)")
        else:
            yield Check(name=stage.files, status="skipped", detail="the corpus's own held-out part is used")


def _base(recipe: Recipe) -> Check:
    model = recipe.base.model
    name = "base.model"
    if model == TINY:
        return Check(name=name, status="passed", detail="tiny, made on the spot")
    try:
        check_base(recipe.base)
    except AnadilError as error:
        return Check(name=name, status="failed", detail=str(error), remedy="correct base.model")
    if Path(model).expanduser().is_dir():
        return Check(name=name, status="passed", detail=model)
    offline = os.environ.get("HF_HUB_OFFLINE") == "1"
    if offline or not _answers("huggingface.co", 443):
        remedy = "download it where there is a network and give the directory as base.model"
        return Check(name=name, status="failed", detail=f"{model}: the hub cannot be reached", remedy=remedy)
    pin = "" if recipe.base.revision else "set base.revision, so that the run can be repeated"
    return Check(name=name, status="passed", detail=f"{model} on the hub", remedy=pin)


def _memory(recipe: Recipe) -> Check:
    try:
        detail = check_fits(recipe, here=True)
    except PreflightError as error:
        first, _, rest = str(error).partition("\n")
        return Check(name="memory", status="failed", detail=first, remedy=rest.strip())
    except AnadilError as error:
        remedy = "see the message; anadil plan tells more"
        return Check(name="memory", status="failed", detail=str(error), remedy=remedy)
    return Check(name="memory", status="passed", detail=detail)


def _storage(recipe: Recipe, work: Path) -> Check:
    root = recipe.storage.root or str(work)
    if "://" in root:
        try:
            storage.store(root).directories(root)
        except AnadilError as error:
            return Check(name="storage", status="failed", detail=str(error), remedy="see the message")
        return Check(name="storage", status="passed", detail=f"{root} can be listed")
    there = next(path for path in (Path(root), *Path(root).parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        return Check(
            name="storage", status="failed", detail=f"{there}: not writable", remedy="choose another --work"
        )
    enough = free >= MIN_FREE_BYTES
    return Check(
        name="storage",
        status="passed" if enough else "failed",
        detail=f"{root} ({human_bytes(free)} free)",
        remedy="" if enough else f"free {human_bytes(MIN_FREE_BYTES)} or choose another --work",
    )


def _tracking(recipe: Recipe, work: Path) -> Check:
    try:
        uri = tracking_uri(recipe, default=f"sqlite:///{work}/mlflow.db")
    except AnadilError as error:
        remedy = "correct the variable, or set tracking.uri"
        return Check(name="tracking", status="failed", detail=str(error), remedy=remedy)
    if uri is None:
        return Check(name="tracking", status="skipped", detail="off")
    parts = urlparse(uri)
    if parts.scheme not in ("http", "https"):
        return Check(name="tracking", status="passed", detail=masked(uri))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if _answers(parts.hostname or "", port):
        return Check(
            name="tracking", status="passed", detail=f"{parts.scheme}://{parts.hostname}:{port} answers"
        )
    # A run does not need it: what cannot be sent is kept and sent later.
    remedy = "start the server, or go on: the run keeps its tracking and sends it later"
    return Check(
        name="tracking", status="skipped", detail=f"{parts.hostname}:{port} does not answer", remedy=remedy
    )


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=3):
            return True
    except OSError:
        return False


def _device() -> Check:
    gpus = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if gpus:
        return Check(name="device", status="passed", detail=f"{len(gpus)} GPU(s)")
    cores = os.cpu_count() or 1
    return Check(
        name="device", status="passed", detail=f"no GPU; {cores} CPU cores: fit for `smoke`, not for 1B"
    )
