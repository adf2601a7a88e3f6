"""Version, commit and digest of this installation, for `anadil --version`."""

import hashlib
import json
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from anadil import __version__
from anadil.core.processes import run_child

PACKAGE = Path(__file__).parents[1]
CHECKOUT = PACKAGE.parents[1]
"""Root of the repository, where the program runs from one."""
EMPTY = hashlib.sha256().hexdigest()
SOURCE_SUFFIXES = {".py", ".jinja", ".j2", ".css", ".yaml", ".tsv"}
SHOWN = 12
"""Digits of a commit and of a digest. Source: git abbreviates to as many in large repositories."""


def version_line() -> str:
    """One line by which two installations can be told apart."""
    version, commit = _build()
    pipelines = [PACKAGE.with_name("anadil_pipelines"), CHECKOUT / "pipelines" / "anadil_pipelines"]
    # A wheel has the recipes inside, a checkout beside: both have equal digests without.
    files = [path for path in PACKAGE.rglob("*") if not path.is_relative_to(PACKAGE / "recipes")]
    parts = [digest_of(PACKAGE, files), *(digest_of(folder, folder.rglob("*")) for folder in pipelines)]
    digest = hashlib.sha256("".join(part for part in parts if part != EMPTY).encode()).hexdigest()
    return f"anadil {version} (commit {commit}, digest {digest[:SHOWN]})"


def digest_of(root: Path, *groups: Iterable[Path]) -> str:
    """SHA-256 of the source files among some paths, group by group, with their places below a root."""
    digest = hashlib.sha256()
    for group in groups:
        for file in sorted(group):
            if file.suffix in SOURCE_SUFFIXES:
                digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _build() -> tuple[str, str]:
    """Version and commit: as `make release` wrote them, as pip noted them, or as git says in a checkout."""
    with suppress(OSError):
        build = json.loads((PACKAGE / "_build.json").read_text(encoding="utf-8"))
        return build["version"], build["commit"][:SHOWN]
    with suppress(metadata.PackageNotFoundError):
        # Source: PEP 610.
        origin = json.loads(metadata.distribution("anadil").read_text("direct_url.json") or "{}")
        if vcs := origin.get("vcs_info"):
            return __version__, vcs["commit_id"][:SHOWN]
    if (CHECKOUT / ".git").exists():
        with suppress(OSError, subprocess.SubprocessError):
            git = ["git", "-C", str(CHECKOUT)]
            commit = run_child([*git, "rev-parse", f"--short={SHOWN}", "HEAD"], 5)
            changed = run_child([*git, "status", "--porcelain", "--", "components", "pipelines"], 5)
            if commit.returncode == 0:
                return __version__, commit.stdout.strip() + ("-changed" if changed.stdout else "")
    return __version__, "unknown"
