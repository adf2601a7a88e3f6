"""Packages of extras that are not installed, and the remedy."""

import importlib.util
import json
import os
import platform
import re
import shlex
import sys
from contextlib import suppress
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from anadil import __version__
from anadil.core.build import CHECKOUT
from anadil.core.errors import PreflightError
from anadil.core.stage import Stage

IMAGES = {
    "pipelines": "pipelines", "launch": "tools", "report": "tools", "s3": "tools", "tracking": "tools", "ray": "clean-ray",
    "hub": "clean", "tools": "tools", "watch": "tools",
}  # fmt: skip
"""Extra -> image that holds its packages beside the command line; that of a laptop holds nearly all."""
DRIVERS = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Module -> package that holds it, where the names differ."""
IMPORT_NAMES = {
    "fasttext-predict": "fasttext", "mlflow-skinny": "mlflow", "pyyaml": "yaml",
    "liger-kernel": "liger_kernel", "kfp-kubernetes": "kfp.kubernetes", "markdown-it-py": "markdown_it",
    "tensorboardx": "tensorboardX", "scikit-learn": "sklearn",
}  # fmt: skip
SHOWN_PACKAGES = 5
"""In a message: the remedy installs all."""
ON_GPUS_ONLY = frozenset({"liger-kernel"})
"""Packages that the build of torch for CPUs has no use for: our images with `TORCH=cpu` go without them."""
WHEEL = f"anadil-{__version__}-py3-none-any.whl"


def install(extra: str) -> str:
    """The remedy where packages of one of this program's extras are missing.

    Nothing can be installed into an image that runs.
    """
    here = os.environ.get("ANADIL_IMAGE", "")
    if not here:
        # From where the program itself was installed: a package of its name on an index is a stranger's.
        return f"run {_pip()} {_source(extra)}"
    place, _, tag = here.rpartition(":")
    other = f"{place.rpartition('/')[0]}/{IMAGES.get(extra, 'laptop')}:{tag}"
    if other != here:
        return f"the image {here} does not hold them; run it in {other}"
    return (
        f"no image holds them beside this command; run it on a machine whose anadil has the extra {extra!r}"
    )


def install_module(module: str) -> str:
    """The remedy where a module is missing that no extra of this program brings, such as the driver of a database."""
    name = DRIVERS.get(module, module.partition(".")[0])
    if here := os.environ.get("ANADIL_IMAGE", ""):
        return f"run it on a machine, with {name} beside anadil: the image {here} lacks it"
    return f"run {_pip()} {shlex.quote(name)}"


def _pip() -> str:
    """The command that installs into the environment of this process."""
    python = shlex.quote(sys.executable)
    # Not `find_spec`: setuptools takes the question for pip itself, and takes its distutils away, which torch's compiler needs.
    has_pip = PathFinder.find_spec("pip") is not None
    return f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"


def _source(extra: str) -> str:
    """The checkout, the wheel or the address of the repository, with the extra, as pip reads it."""
    with suppress(metadata.PackageNotFoundError):
        # Source: PEP 610; pip and uv write it for everything that does not come from an index.
        origin = json.loads(metadata.distribution("anadil").read_text("direct_url.json") or "{}")
        url, vcs = origin.get("url", ""), origin.get("vcs_info")
        if vcs or url.startswith("http"):
            address = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
            return shlex.quote(f"anadil[{extra}] @ {address}")
        path = Path(url2pathname(urlsplit(url).path))
        if url and path.exists():
            editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
            return editable + shlex.quote(f"{path}[{extra}]")
    if (CHECKOUT / "pyproject.toml").is_file():
        return f"--editable {shlex.quote(f'{CHECKOUT}[{extra}]')}"
    return shlex.quote(f"./{WHEEL}[{extra}]") + ", in the folder of that wheel"


def require_packages(extra: str) -> None:
    """Refuse to go on without the packages of an extra such as `clean`, and of the extras that it includes."""
    if names := missing_packages(extra):
        more = f" and {len(names) - SHOWN_PACKAGES} more" if len(names) > SHOWN_PACKAGES else ""
        absent = ", ".join(names[:SHOWN_PACKAGES]) + more
        raise PreflightError(f"not installed: {absent}; {install(extra)}")


def require_stage(stage: Stage) -> None:
    """Refuse a stage without its packages: of the extra of its name, else of the extra of its image."""
    require_packages(stage.name if stage.name in extras() else stage.pod.image)


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed."""
    spared = ON_GPUS_ONLY if _has_torch_for_cpus() else frozenset[str]()
    return [name for name in sorted(names_of(extra) - spared) if not is_installed(name)]


def extra_with(module: str) -> str:
    """The smallest extra that brings a module. Empty where none does, and where the module's package is installed."""
    top = module.partition(".")[0]
    bring = {each: names for each in extras() if top in map(_module_of, names := names_of(each))}
    here = any(_module_of(name) == top and is_installed(name) for names in bring.values() for name in names)
    return "" if here else min(bring, key=lambda each: len(bring[each]), default="")


def extras() -> list[str]:
    """Names of all extras. There are none where the program runs without being installed."""
    try:
        return metadata.metadata("anadil").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []


def is_installed(name: str) -> bool:
    """Return whether a package is here, by its first module."""
    module = _module_of(name)
    try:
        # Setuptools hooks into importlib.util, and warns at the name of pip.
        find = PathFinder.find_spec if module == "pip" else importlib.util.find_spec
        return find(module) is not None
    except (ImportError, ValueError):
        return False


def _module_of(name: str) -> str:
    return IMPORT_NAMES.get(name, name.replace("-", "_")).partition(".")[0]


def _has_torch_for_cpus() -> bool:
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False


def names_of(extra: str) -> set[str]:
    """Names of the packages of an extra, and of those that it includes."""
    names: set[str] = set()
    for line in (metadata.requires("anadil") or ()) if extra in extras() else ():
        requirement, _, marker = line.partition(";")
        elsewhere = "platform_machine" in marker and (sys.platform, platform.machine()) != ("linux", "x86_64")
        if re.search(rf"extra == ['\"]{extra}['\"]", marker) and not elsewhere:
            names.add(re.split(r"[^\w.-]", requirement.strip())[0].lower())
    return names
