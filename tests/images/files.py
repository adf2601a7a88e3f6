import re
import tomllib
from pathlib import Path

from anadil.core.stages import ALL_IMAGES, IMAGES, TORCH_IMAGES, rooms_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "images"
TORCH = TORCH_IMAGES
STAGES = tuple(sorted(set(IMAGES.values()) - {"tools"}))
NAMES = ALL_IMAGES
PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def locks(name: str, kind: str = "cpu") -> list[Path]:
    image, _, engine = name.partition("-")
    names = (
        "common",
        *([f"torch-{kind}"] if name in TORCH else []),
        image,
        *([f"engine-{engine}"] if engine else []),
    )
    return [FOLDER / "locks" / f"{each}.txt" for each in names]


def pins(name: str, kind: str = "cpu") -> dict[str, str]:
    return {
        package: version
        for lock in locks(name, kind)
        for package, version, _ in PIN.findall(lock.read_text(encoding="utf-8"))
    }


def rooms(name: str) -> set[str]:
    """Folders of the package that an image takes, those inside `cli` by their path."""
    found = rooms_of(name)
    if found is not None:
        return set(found)
    package = ROOT / "components/anadil"
    return {path.name for path in package.iterdir() if path.is_dir() and any(path.rglob("*.*"))} - {
        "__pycache__"
    }
