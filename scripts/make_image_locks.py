"""Write the lock of each image: every package that it holds, one version, with its hashes. And constraints.txt.

python scripts/make_image_locks.py             after a change of pyproject.toml: keeps the pins that still fit
python scripts/make_image_locks.py --upgrade   takes the newest versions that fit

All images are solved as one environment first, so that a package has the same version in each.
What all of them need stands in common.txt, and is one layer. Of torch
there are two locks, which are a layer too: the CUDA wheel of PyPI with what it needs, and the
CPU wheel of PyTorch's own index, or of a directory: --cpu-wheels DIRECTORY.

constraints.txt has the same versions for people and tests, without hashes, and the packages that only tests need.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from anadil.core.stages import IMAGES, LAPTOP, TORCH_IMAGES

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "pyproject.toml"
LOCKS = ROOT / "images" / "locks"
COMMON = ("s3", "tracking", "metrics", "wandb", "tensorboard")
"""Extras of every image: S3, and the clients of MLflow, Prometheus, W&B and TensorBoard."""
ENGINES = {"ray": "clean"}
"""Extra of an engine -> image of which a variant holds it in a layer of its own, with what starts pods."""
EXTRAS = {name: (name, *COMMON) for name in (*dict.fromkeys(IMAGES.values()), "pipelines", LAPTOP)}
CONSTRAINTS = ROOT / "constraints.txt"
NOTE = """\
# Versions that tests and images have, for `pip install -c constraints.txt`.
# Written by scripts/make_image_locks.py.
"""
PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==(\S+)", re.MULTILINE)
PLATFORM = "x86_64-manylinux_2_28"
"""Newest platform of wheels. Source: Debian 12 has glibc 2.36."""
WITH_TORCH = {
    "pretrain": ("torch", "liger-kernel"),
    "lowprecision": ("torchao",),
    "quantization": ("bitsandbytes",),
}
"""Extra -> its requirements that torch's locks hold; all but torch itself are for GPUs alone."""


def pins(lock: Path) -> dict[str, str]:
    """Package -> version of a lock file."""
    return dict(PIN.findall(lock.read_text(encoding="utf-8"))) if lock.is_file() else {}


def lock_of(image: str) -> Path:
    """The lock of an image."""
    return LOCKS / f"{image}.txt"


def engine_lock(engine: str) -> Path:
    """The lock of what an engine needs beyond the image that it is added to."""
    return LOCKS / f"engine-{engine}.txt"


def torch_lock(kind: str) -> Path:
    """The lock of torch for `cpu` or `cuda`."""
    return LOCKS / f"torch-{kind}.txt"


def compile_lock(out: Path, inputs: Sequence[str | Path], *options: str, upgrade: bool = False) -> None:
    """Let uv solve the inputs and write the versions with their hashes."""
    command = [
        sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-annotate",
        "--python-version", "3.11", "--python-platform", PLATFORM,
        "--custom-compile-command", "python scripts/make_image_locks.py",
        *(["--upgrade"] if upgrade else []), *options, "--output-file", str(out), *map(str, inputs),
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


def extras(names: Sequence[str]) -> list[str]:
    """Options that name extras."""
    return [word for name in names for word in ("--extra", name)]


def without(lock: Path) -> list[str]:
    """Options that leave out what another lock holds."""
    return [word for name in pins(lock) for word in ("--no-emit-package", name)]


def main() -> int:
    """Write all locks."""
    parser = argparse.ArgumentParser(description="write images/locks/*.txt")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    parser.add_argument("--cpu-wheels", metavar="DIRECTORY", help="where the CPU wheel of torch lies")
    options = parser.parse_args()
    upgrade: bool = options.upgrade
    requirements: dict[str, list[str]] = tomllib.loads(PROJECT.read_text())["project"][
        "optional-dependencies"
    ]
    gpu = [
        line for extra, names in WITH_TORCH.items() for line in requirements[extra] if line.startswith(names)
    ]
    with tempfile.TemporaryDirectory() as folder:
        joint, source = Path(folder) / "joint.txt", Path(folder) / "torch.in"
        before: dict[str, str] = {}
        for lock in (
            *map(lock_of, (*EXTRAS, "common", "mlflow")),
            *map(engine_lock, ENGINES),
            torch_lock("cuda"),
            CONSTRAINTS,
        ):
            before |= pins(lock)
        joint.write_text("".join(f"{name}=={version}\n" for name, version in before.items()))
        all_extras = extras(sorted({*ENGINES, "dev", *(name for names in EXTRAS.values() for name in names)}))
        server = LOCKS / "mlflow.in"
        compile_lock(joint, [PROJECT, server], *all_extras, upgrade=upgrade)
        lines = [f"{name}=={version}\n" for name, version in pins(joint).items()]
        CONSTRAINTS.write_text(NOTE + "".join(lines), encoding="utf-8")

        compile_lock(lock_of("common"), [PROJECT], *extras(COMMON), "--constraint", str(joint), upgrade=True)
        common = without(lock_of("common"))
        source.write_text("\n".join(gpu))
        compile_lock(torch_lock("cuda"), [source], "--constraint", str(joint), *common, upgrade=True)
        version = pins(torch_lock("cuda"))["torch"]
        no_torch = Path(folder) / "no-torch.txt"
        no_torch.write_text(re.sub(r"^torch==.*\n(    .*\n)*", "", joint.read_text(), flags=re.MULTILINE))
        source.write_text(f"torch=={version}+cpu")
        place = ["--find-links", options.cpu_wheels] if options.cpu_wheels else ["--torch-backend", "cpu"]
        given = ["--constraint", str(no_torch), *place, *common]
        compile_lock(torch_lock("cpu"), [source], *given, upgrade=True)

        for image, names in (EXTRAS | {"mlflow": ()}).items():
            given = [*extras(names), "--constraint", str(joint), *common]
            given += without(torch_lock("cuda")) if image in TORCH_IMAGES else []
            compile_lock(lock_of(image), [PROJECT if names else server], *given, upgrade=True)
        for engine, image in ENGINES.items():
            given = [
                *extras([engine, "launch"]),
                "--constraint",
                str(joint),
                *common,
                *without(lock_of(image)),
            ]
            compile_lock(engine_lock(engine), [PROJECT], *given, upgrade=True)
    compile_lock(LOCKS / "build.txt", [LOCKS / "build.in"], upgrade=upgrade)
    return 0


if __name__ == "__main__":
    sys.exit(main())
