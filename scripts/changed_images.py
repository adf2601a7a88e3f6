"""Print the names of the images that a change touches, which `.ci/run` builds and tests.

    python scripts/changed_images.py [BASE]

The change is all that differs from BASE, files that git does not know yet included. Left out, BASE is where the
branch left main, or the commit before on main itself. Without history it is every image. That of a laptop, which holds
what the others hold and takes four minutes of both cores, is built by `.ci/run --full` alone.
"""

import subprocess
import sys
from pathlib import Path

from anadil.core.stages import ENGINE_IMAGES, LAPTOP, STEP_IMAGES, rooms_of

ROOT = Path(__file__).parents[1]
PACKAGE = "components/anadil/"
STEPS = set(STEP_IMAGES)
"""Images of a pipeline's steps. Those of its tools change with their own files only."""
OTHERS = {"pipelines", "mlflow"}


def main(arguments: list[str]) -> int:
    """Print them."""
    base = arguments[0] if arguments else base_commit()
    images = STEPS | OTHERS if base is None else {name for path in changed(base) for name in touched(path)}
    sys.stdout.writelines(f"{name}\n" for name in sorted(images))
    return 0


def base_commit() -> str | None:
    """Commit to compare the change with; None if git has no other commit."""
    for name in ("origin/main", "main"):
        base = git("merge-base", "HEAD", name)
        if base and base != git("rev-parse", "HEAD"):
            return base[0]
    return next(iter(git("rev-parse", "--verify", "--quiet", "HEAD~1")), None)


def changed(base: str) -> list[str]:
    """Files that differ from a commit."""
    return [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]


def touched(path: str) -> set[str]:
    """Images that a file is part of."""
    if path == "pyproject.toml":
        return STEPS | {"pipelines"}
    if path.startswith("pipelines/"):
        return {"pipelines"}
    if path == f"images/locks/{LAPTOP}.txt":
        return set()
    if path.startswith("images/"):
        lock = Path(path).name.split(".")[0]
        name = ENGINE_IMAGES.get(lock.removeprefix("engine-"), lock)
        # The image of an engine is another one with a layer more.
        return {each for each in STEPS | OTHERS if name in (each, each.partition("-")[0])} or STEPS | OTHERS
    if not path.startswith(PACKAGE):
        return set()
    room = path.removeprefix(PACKAGE)
    held = {name: rooms_of(name) for name in STEPS}
    return {
        name
        for name, rooms in held.items()
        if rooms is None or "/" not in room or any(room.startswith(f"{each}/") for each in rooms)
    }


def git(*arguments: str) -> list[str]:
    """Lines of a command of git; none where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607
    return done.stdout.split() if done.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
