"""The places that a run names, and the machines that see them."""

from collections.abc import Callable, Iterable
from pathlib import Path

from anadil.artifacts.storage import BUILT_IN
from anadil.core.errors import PreflightError, RecipeError, RetryableError
from anadil.core.stages import FLOW
from anadil.preflight.check import CheckResult, skipped
from anadil.recipe.sections import Recipe
from anadil.runtime.job import earlier_place, files_key, named_files, named_side_files, recipes_of


def claim_of(place: str, recipe: Recipe) -> str:
    """Return the claim of `cluster.volumes` that a path lies on, where this machine does not mount it."""
    if "://" in place or place.startswith(BUILT_IN):
        return ""
    for volume in recipe.cluster.volumes:
        if volume.holds(place):
            return "" if Path(volume.path).is_dir() else volume.claim
    return ""


def claims_of(places: Iterable[str], recipe: Recipe, *, here: bool) -> dict[str, str]:
    """Place -> its claim, of the places that only pods see; none if the stages will run `here`."""
    return {} if here else {place: claim for place in places if (claim := claim_of(place, recipe))}


def unseen(key: str, hidden: dict[str, str]) -> CheckResult:
    """Return the result of a key whose places lie on claims that this machine does not mount."""
    places = ", ".join(f"{place} (claim {claim})" for place, claim in hidden.items())
    return skipped(key, f"{places} can be seen from pods alone")


def inspect_where_visible(
    key: str, inspect: Callable[[], CheckResult], *, here: bool, hidden: dict[str, str] | None = None
) -> CheckResult:
    """Return the result of an inspection, or skip what cannot be read from here where that is no mistake."""
    if hidden:
        return unseen(key, hidden)
    try:
        return inspect()
    except ModuleNotFoundError as error:
        return skipped(key, f"not checked, because {error.name} is not installed here")
    except (PreflightError, RetryableError) as error:
        if here:
            raise
        return skipped(key, f"not checked, because it cannot be read from here ({error})")


def check_reach(recipe: Recipe) -> None:
    """Refuse a recipe with places that exist on one machine only."""
    models = {"base.model": (recipe.base.model,), "merge.add": recipe.merge.models if recipe.merge else ()}
    places = {
        "storage.root": (recipe.storage.root or "",),
        **{
            files_key(stage, part): named_files(stage, part)
            for stage in FLOW
            if stage.files
            for part in recipes_of(stage, recipe)
        },
        **{key: names for stage in FLOW for key, names in named_side_files(stage, recipe).items()},
        **{
            key: tuple(each for each in named if each.startswith(("/", ".", "~")) or Path(each).is_dir())
            for key, named in models.items()
        },
        **{key: (place,) for stage in FLOW for key, place in earlier_place(stage, recipe).items()},
    }
    mistakes = [
        f"  {key}: {value or 'not set'}"
        for key, values in places.items()
        for value in values
        if "://" not in value
        and not (value.startswith(BUILT_IN) and key != "storage.root")
        and not any(volume.holds(value) for volume in recipe.cluster.volumes)
    ]
    if mistakes:
        raise RecipeError(
            "no step on the cluster would see\n" + "\n".join(mistakes) + "\n"
            "put it on s3://, or on a claim of cluster.volumes, such as "
            "cluster.volumes=[{claim: fsx, path: /fsx}]"
        )


def check_shared(
    recipe: Recipe, target: str, backend: str, stage: str = "pretrain", nodes: int | None = None
) -> None:
    """Refuse a stage whose machines would save into one directory that they do not share.

    Args:
        recipe: What is to be trained.
        target: URI of the artifact, or the root under which it is written.
        backend: `local` has one machine.
        stage: The machines of `finetune` always save together.
        nodes: Number of machines; left out, `cluster.nodes`.
    """
    nodes, parallel = nodes or recipe.cluster.nodes, recipe.pretrain.parallelism
    degrees = {name: getattr(parallel, name) for name in ("shard", "tensor", "context", "pipeline")}
    needed = [f"pretrain.parallelism.{name}={degree}" for name, degree in degrees.items() if degree > 1]
    if recipe.pretrain.copies.archive:
        needed.append("pretrain.copies.archive")
    if stage == "finetune":
        needed = [f"finetune.batch_size={recipe.finetune.batch_size}"]
    if backend == "local" or nodes == 1 or not needed or "://" not in target:
        return
    keys = ", ".join(needed)
    if backend == "sagemaker":
        raise PreflightError(
            f"cluster.backend: sagemaker gives each of the {nodes} machines (cluster.nodes) a checkpoint directory "
            f"of its own, but {stage} needs one that all machines see ({keys}); set cluster.nodes=1, or "
            "cluster.backend=pytorchjob, or leave those keys out"
        )
    if recipe.cluster.work is None:
        raise PreflightError(
            f"cluster.work: not set, and beside {target} each of the {nodes} machines (cluster.nodes) would keep "
            f"checkpoints in its own pod, but {stage} needs a directory that all machines see ({keys}); put "
            "cluster.work on a volume that they all mount, such as cluster.volumes=[{claim: fsx, path: /fsx}] and "
            "cluster.work=/fsx/work"
        )
