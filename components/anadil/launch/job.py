"""One training stage as a job of its own, which each backend renders in its own form."""

import functools
import hashlib
import json
from dataclasses import dataclass

from anadil.core.stages import STAGES
from anadil.plan.instances import CPU, Machine, machine
from anadil.recipe.sections import Recipe
from anadil.runtime.flow import options_of
from anadil.runtime.job import most_processes
from anadil.runtime.remake import may_remake

DOMAIN = "anadil.dev"
RUN_LABEL = f"{DOMAIN}/run"  # The pipeline run, or the name of the launch, that a job belongs to.
STAGE_LABEL = "app.kubernetes.io/component"
SPEC_ANNOTATION = f"{DOMAIN}/spec-hash"  # SHA-256 of the manifest, by which a launcher knows a job again.
OUR_JOBS = "app.kubernetes.io/managed-by=anadil-launch"  # Label selector of all jobs of launchers.
TARGET_ANNOTATION = f"{DOMAIN}/artifact"  # URI of the artifact that the job writes.
HOME = "/home/anadil"
IMAGE_USER = 10_001  # Numeric user and group of every image; nothing outside the volumes is written.
# A manifest asks for it many times, and the table takes some 30 ms to read.
_machine = functools.cache(machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A training stage, its inputs and where its artifact goes."""

    stage: str
    recipe: Recipe
    inputs: dict[str, str]  # Artifact word -> URI.
    files: tuple[str, ...] = ()  # Outside files instead of the recipe's.
    target: str  # URI of the artifact.
    run: str = ""  # Pipeline run that it belongs to.

    @property
    def name(self) -> str:
        """Name that follows from the work, so that a launcher that starts again finds its job."""
        identity = json.dumps([self.stage, self.target, self.run])
        return f"anadil-{self.stage}-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"

    @property
    def machine(self) -> Machine | None:
        """The machine type of each node; None where the recipe names none, and no GPU is asked for."""
        instance = self.recipe.cluster.instance
        return _machine(instance) if instance else None

    @property
    def nodes(self) -> int:
        """Machines that train together."""
        return self._used[0]

    @property
    def devices(self) -> int:
        """GPUs of each node."""
        asked = self.recipe.cluster.resources.get(self.stage)
        return asked.gpus if asked and asked.gpus is not None else self._used[1]

    @property
    def processes(self) -> int:
        """Training processes of each node."""
        stage = STAGES[self.stage]
        if not stage.distributed:
            return 1
        count = self.recipe.cluster.processes_per_node or max(1, self.devices)
        return min(count, most_processes(stage, self.recipe))

    @property
    def _used(self) -> tuple[int, int]:
        """Nodes, and GPUs of each, unless `cluster.resources` says so of this stage."""
        cluster, stage = self.recipe.cluster, STAGES[self.stage]
        if self.machine is None or self.machine.device == CPU:
            scales = stage.distributed and not stage.most_processes
            return (cluster.nodes if scales else 1), 0
        # Here, because it needs models, which what drives pods of `clean` has not.
        from anadil.plan.stage_memory import stage_devices

        return stage_devices(self.stage, self.recipe, self.machine, cluster.nodes)

    @property
    def image(self) -> str:
        """Image of the stage."""
        return self.recipe.image_of(self.stage)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Command line of `python -m anadil.<stage>`, with the whole recipe."""
        recipe = self.recipe.model_dump_json(exclude_unset=True)
        flag = STAGES[self.stage].files_flag
        files = [f"--{flag}", *self.files] if self.files else []
        remake = ["--remake"] if may_remake() and STAGES[self.stage].costly else []
        return ("--recipe", recipe, *options_of(self.inputs), *files, "--out", self.target, *remake)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the job and its pods."""
        return labels_of(self.stage, self.name, self.run, "anadil-launch")


def labels_of(stage: str, name: str, run: str, manager: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a job of this name."""
    return {
        "app.kubernetes.io/name": "anadil",
        STAGE_LABEL: stage,
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": manager,
        RUN_LABEL: run or name,
    }
