"""Remedy for packages that are not installed."""

import json
import os
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

IMAGES = {
    "pipelines": "pipelines", "launch": "tools", "report": "tools", "s3": "tools", "tracking": "tools", "ray": "clean-ray",
    "hub": "clean",
}  # fmt: skip
"""Extra -> image that holds its packages beside the command line; that of a laptop holds nearly all."""
DRIVERS = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Module -> package that holds it, where the names differ."""
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
