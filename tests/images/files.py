"""The images' files, read."""

import re
import tomllib
from pathlib import Path

from anadil.flow import IMAGES
from anadil.flow import TORCH_IMAGES as TORCH

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "images"
STAGES = tuple(sorted(set(IMAGES.values()) - {"tools"}))
NAMES = (*STAGES, "tools", "pipelines", "mlflow")
PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def locks(name: str, kind: str = "cpu") -> list[Path]:
    """The lock files that an image is made of."""
    torch = [FOLDER / "torch" / f"requirements-{kind}.txt"] if name in TORCH else []
    return [FOLDER / "common" / "requirements.txt", *torch, FOLDER / name / "requirements.txt"]


def pins(name: str, kind: str = "cpu") -> dict[str, str]:
    """Package -> version of an image."""
    return {
        package: version
        for lock in locks(name, kind)
        for package, version, _ in PIN.findall(lock.read_text(encoding="utf-8"))
    }


def containerfile(name: str) -> str:
    """The text of an image's Containerfile."""
    return (FOLDER / name / "Containerfile").read_text(encoding="utf-8")


def copied(name: str) -> set[str]:
    """Folders of `components/anadil` that an image takes, and `.` for the modules beside them."""
    found = re.findall(r"^COPY components/anadil(/\S+)? ", containerfile(name), re.MULTILINE)
    if found == [""]:
        package = ROOT / "components/anadil"
        folders = {path.name for path in package.iterdir() if path.is_dir() and any(path.rglob("*.*"))}
        return folders - {"__pycache__"} | {"."}
    return {folder.removeprefix("/").replace("*.*", ".") for folder in found}
