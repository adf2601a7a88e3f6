"""The compiled pipeline of every shipped recipe, and one with all that a cluster can be asked for."""

import contextlib
import io
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from anadil.cli import main
from anadil.recipe.load import shipped

FOLDER = Path(__file__).parents[1] / "golden" / "pipelines"
EVERYTHING = (
    "cluster.backend=pytorchjob",
    "cluster.hyperpod=true",
    "cluster.image=registry.example/anadil/{stage}:{version}",
    f"cluster.digests={{tools: sha256:{'ab' * 32}}}",
    "cluster.namespace=hyperpod-ns-team",
    "cluster.queue=hyperpod-ns-team-localqueue",
    "cluster.priority=training-priority",
    "cluster.pull_secrets=[registry, mirror]",
    "cluster.topology=topology.k8s.aws/network-node-layer-3",
    "cluster.notifications=anadil-notifications",
    "cluster.secrets={hub: [HF_TOKEN], tracking: [MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD]}",
    "cluster.volumes=[{claim: fsx, path: /fsx}, {claim: raw, path: /raw, read_only: true}]",
    "cluster.work=/fsx/work",
    "cluster.node_selector={team: language}",
    "cluster.tolerations=[{key: nvidia.com/gpu, effect: NoSchedule}]",
    "cluster.resources={clean: {cpu: 16, memory: 64Gi}, evaluate: {gpus: 2}}",
    "cluster.parallel_sweep=true",
)
"""Settings over the recipe azerbaijani-1b."""


def compiled(recipe: str, settings: tuple[str, ...] = ()) -> str:
    """What `anadil compile` writes."""
    words = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "pipeline.yaml"
        assert main.main(["compile", recipe, "-f", str(path), *words]) == 0
        return path.read_text(encoding="utf-8")


GOLDEN: Mapping[Path, Callable[[], str]] = {
    FOLDER / f"{path.stem}.yaml": partial(compiled, path.stem) for path in shipped()
} | {FOLDER / "everything.yaml": partial(compiled, "azerbaijani-1b", EVERYTHING)}
