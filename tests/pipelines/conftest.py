"""A server of Kubeflow Pipelines, a recipe for it, and our commands as people type them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import kfp
import pytest

from anadil.cli import main
from anadil.recipe.sections import Recipe
from anadil_pipelines import adapt, submit
from tests.kit.fake_kubeflow import FakeKubeflow, fake_kubeflow

Command = Callable[..., int]


@pytest.fixture
def kubeflow() -> Iterator[FakeKubeflow]:
    with fake_kubeflow() as fake:
        yield fake


@pytest.fixture(autouse=True)
def no_kubeflow_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("KF_", "KUBE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.setattr(kfp.Client, "_LOCAL_KFP_CONTEXT", str(tmp_path / "context.json"))


@pytest.fixture(scope="session")
def compiled_once() -> Callable[..., str]:
    """`pipeline_yaml` that compiles equal recipes once."""
    made: dict[str, str] = {}

    def compiled(recipe: Recipe, *, retrains: bool = False) -> str:
        text = f"{retrains} {recipe.model_dump_json(exclude_unset=True)}"
        return made.get(text) or made.setdefault(text, adapt.pipeline_yaml(recipe, retrains=retrains))

    return compiled


@pytest.fixture(autouse=True)
def no_second_compilation(monkeypatch: pytest.MonkeyPatch, compiled_once: Callable[..., str]) -> None:
    monkeypatch.setattr(submit, "pipeline_yaml", compiled_once)


@pytest.fixture
def recipe_file(tmp_path: Path) -> str:
    """A recipe that a cluster can run."""
    path = tmp_path / "bakı.yaml"
    path.write_text(
        "base: {model: tiny}\n"
        "clean: {inputs: ['s3://bucket/raw/*.jsonl']}\n"
        "storage: {root: 's3://bucket/root'}\n"
        "cluster: {image: 'registry.example/anadil/{stage}:{version}'}\n",
        encoding="utf-8",
    )
    return str(path)


@pytest.fixture
def anadil(kubeflow: FakeKubeflow) -> Command:
    """`anadil submit` or `anadil schedule`, with the address of the server."""

    def run(*words: str, host: str | None = None) -> int:
        return main.main([*words, "--host", kubeflow.url if host is None else host])

    return run
