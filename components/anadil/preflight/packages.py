"""Missing packages of this program's extras."""

import importlib.util
import platform
import re
import sys
from importlib import metadata
from importlib.machinery import PathFinder

from anadil.core.errors import PreflightError
from anadil.core.install import install

IMPORT_NAMES = {
    "fasttext-predict": "fasttext",
    "mlflow-skinny": "mlflow",
    "pyyaml": "yaml",
    "liger-kernel": "liger_kernel",
    "kfp-kubernetes": "kfp.kubernetes",
    "tensorboardx": "tensorboardX",
}

ON_GPUS_ONLY = frozenset({"liger-kernel"})
"""Packages that the build of torch for CPUs has no use for: our images with `TORCH=cpu` go without them."""


def require_packages(extra: str, why: str = "") -> None:
    """Refuse to go on without the packages of an extra such as `clean`, and of the extras that it includes."""
    if absent := ", ".join(missing_packages(extra)):
        raise PreflightError(
            f"{f'{why} and needs {absent}' if why else f'not installed: {absent}'}; {install(extra)}"
        )


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
