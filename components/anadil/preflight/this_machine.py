"""Checks of this machine: a place to write, locks, tracking, devices."""

import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlparse

from anadil.artifacts import local_directory, storage
from anadil.core.errors import PreflightError
from anadil.core.format import GIB, counted, human_bytes
from anadil.core.install import install
from anadil.core.log import masked
from anadil.recipe.sections import Recipe
from anadil.recipe.tracking_address import TENSORBOARD, WANDB, tracker
from anadil.runtime.check import CheckResult, failed, passed, skipped
from anadil.runtime.threads import check_shared_locks
from anadil.runtime.trackers import NAMES
from anadil.runtime.tracking_spool import tracker_address

PACKAGES = {WANDB: "wandb", TENSORBOARD: "tensorboardX"}
MIN_FREE_BYTES = 2 * GIB  # Far more than `smoke` writes; the plan of a real run tells how much that needs.
IMPORT_NAMES = {
    "fasttext-predict": "fasttext", "mlflow-skinny": "mlflow", "pyyaml": "yaml",
    "liger-kernel": "liger_kernel", "kfp-kubernetes": "kfp.kubernetes", "markdown-it-py": "markdown_it",
    "tensorboardx": "tensorboardX", "scikit-learn": "sklearn",
}  # fmt: skip
SHOWN_PACKAGES = 5
"""In a message: the remedy installs all."""
ON_GPUS_ONLY = frozenset({"liger-kernel"})
"""Packages that the build of torch for CPUs has no use for: our images with `TORCH=cpu` go without them."""


def check_python() -> Iterator[CheckResult]:
    """Report version and place of this Python."""
    yield passed("python", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.prefix}")


def check_writable_here(recipe: Recipe, work: Path) -> Iterator[CheckResult]:
    """Check that the directories of a run can be written."""
    local_directory.check_writable(work, "--work")
    root = recipe.storage.root or str(work)
    if "://" in root:
        return
    if recipe.storage.root:
        local_directory.check_writable(Path(root), "storage.root")
    yield passed("storage", f"{root} can be written")


def check_bucket(recipe: Recipe) -> Iterator[CheckResult]:
    """List the place of artifacts where it is no directory."""
    root = recipe.storage.root
    if root and "://" in root:
        storage.store(root).directories(root)
        yield passed("storage", f"{root} can be listed")


def check_disk(recipe: Recipe, work: Path) -> Iterator[CheckResult]:
    """Check the free space where artifacts go, unless that is a bucket."""
    root = Path(recipe.storage.root or work)
    if "://" in str(recipe.storage.root):
        return
    folder = next((path for path in (root, *root.parents) if path.is_dir()), Path("/"))
    free = shutil.disk_usage(folder).free
    if free >= MIN_FREE_BYTES:
        yield passed("disk", f"{human_bytes(free)} free")
    else:
        remedy = f"free {human_bytes(MIN_FREE_BYTES)} or choose another --work"
        yield failed("disk", f"{human_bytes(free)} free at {root}", remedy)


def check_locks() -> Iterator[CheckResult]:
    """Check that processes can share locks. Small inputs need none, so this fails nothing."""
    try:
        check_shared_locks()
    except PreflightError as error:
        place, _, rest = str(error).partition(": ")
        detail, _, remedy = rest.partition("; ")
        yield passed(place, f"{detail}; cleaning and short texts need none, longer ones do", remedy)


def check_tracking(recipe: Recipe, work: Path) -> Iterator[CheckResult]:
    """Check that the tracking server answers, or that the tracker's package is installed."""
    uri = tracker_address(recipe, default=f"sqlite:///{work}/mlflow.db")
    if uri is None:
        yield skipped("tracking", "off")
        return
    package = PACKAGES.get(kind := tracker(uri))
    if package and find_spec(package) is None:
        remedy = f"{install(kind)}, or ignore it: the run goes on without it"
        yield skipped("tracking", f"{uri}: {NAMES[kind]}'s package {package} is not installed", remedy)
        return
    parts = urlparse(uri)
    if parts.scheme not in ("http", "https"):
        yield passed("tracking", masked(uri))
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if answers(parts.hostname or "", port):
        yield passed("tracking", f"{parts.scheme}://{parts.hostname}:{port} answers")
        return
    # A run does without: what cannot be sent is kept and sent later.
    remedy = "start the server, or ignore it: the run keeps its tracking and sends it later"
    yield skipped("tracking", f"{parts.hostname}:{port} does not answer", remedy)


def check_device() -> Iterator[CheckResult]:
    """Report the GPUs, or without one the number of CPU cores."""
    gpus = sorted(Path("/dev").glob("nvidia[0-9]*"))
    cores = os.cpu_count() or 1
    text = counted(len(gpus), "GPU") if gpus else f"no GPU; {cores} CPU cores: fit for `smoke`, not for 1B"
    yield passed("device", text)


def answers(host: str, port: int) -> bool:
    """Return whether a server takes a connection within three seconds."""
    try:
        with socket.create_connection((host, port), timeout=3):
            return True
    except OSError:
        return False


def require_packages(extra: str) -> None:
    """Refuse to go on without the packages of an extra such as `clean`, and of the extras that it includes."""
    if names := missing_packages(extra):
        more = f" and {len(names) - SHOWN_PACKAGES} more" if len(names) > SHOWN_PACKAGES else ""
        raise PreflightError(f"not installed: {', '.join(names[:SHOWN_PACKAGES])}{more}; {install(extra)}")


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed."""
    spared = ON_GPUS_ONLY if _has_torch_for_cpus() else frozenset[str]()
    return [name for name in sorted(_names_of(extra) - spared) if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    module = IMPORT_NAMES.get(name, name.replace("-", "_"))
    try:
        # Setuptools hooks into importlib.util, and warns at the name of pip.
        find = PathFinder.find_spec if module == "pip" else importlib.util.find_spec
        return find(module.split(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def _has_torch_for_cpus() -> bool:
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False


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
