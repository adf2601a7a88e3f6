"""`anadil clean plan`: cost of cleaning given files, and the manifest of the pods that would do it."""

import argparse
from typing import Any

from anadil.cli.options import add_output_option
from anadil.cli.output import print_data, print_table
from anadil.core.stages import STAGES
from anadil.runtime.entry_point import add_recipe_options, add_source_option


def add_clean_plan(name: str, commands: Any, text: str) -> None:
    """Add `anadil clean plan`."""
    plan = commands.add_parser(name, help=text, description=f"{text}; only the sizes of files are read")
    add_recipe_options(plan)
    add_source_option(plan)
    text = "files instead of the recipe's clean.inputs"
    plan.add_argument("--raw", metavar="URI", nargs="+", default=[], help=text)
    text = "print the manifest that clean.engine (job, ray) would send to the cluster"
    plan.add_argument("--dry-run", action="store_true", help=text)
    add_output_option(plan)
    plan.set_defaults(command=_plan)


def _plan(options: argparse.Namespace) -> int:
    from anadil.artifacts import storage
    from anadil.clean.read.input_kinds import check_suffixes
    from anadil.core.format import human_bytes, human_hours
    from anadil.preflight.text_size import clean_cost, sizes_of_inputs
    from anadil.recipe.load import load_recipe
    from anadil.runtime.flow import recipe_of_step
    from anadil.runtime.job import files_key
    from anadil.runtime.threads import num_cores

    recipe = load_recipe(options.recipe, options.set)
    if options.of_source or options.dry_run:
        recipe, _ = recipe_of_step(STAGES["clean"], recipe, options.of_source, options.raw or ())
    sizes = storage.sizes(options.raw, "--raw") if options.raw else sizes_of_inputs(recipe)
    check_suffixes(list(sizes), files_key(STAGES["clean"], recipe))
    if options.dry_run:
        print_data(_manifest(recipe, sizes), "yaml" if options.output == "table" else "json")
        return 0
    cost = clean_cost(sizes, recipe.clean, num_cores())
    rows = {
        "files": f"{cost.files:,}",
        "input": human_bytes(cost.input_bytes),
        "engine": recipe.clean.engine,
        "shards": f"{cost.shards:,}",
        "workers": f"{cost.workers:,}",
        "memory": f"{human_bytes(cost.memory_bytes)}, whatever the input",
        "disk": f"up to {human_bytes(cost.disk_bytes)}",
        "CPU time": f"up to {human_hours(cost.cpu_hours)}",
        "time": f"up to {human_hours(cost.hours)} with a CPU for each worker",
    }
    if cost.whole:
        size, hours = human_bytes(cost.whole.num_bytes), human_hours(cost.whole.hours)
        rows["one worker alone"] = (
            f"{cost.whole.name}, {size}, cannot be cut and takes up to {hours}; split it first, "
            "as the guide on cleaning says under Scale"
        )
    print_table(rows, options.output)
    return 0


def _manifest(recipe: Any, sizes: dict[str, int]) -> dict[str, Any]:
    """The manifest that would be sent to the cluster."""
    from anadil.core.errors import RecipeError
    from anadil.launch.kubernetes.clean_pods import DEFAULT_WORKERS, CleanPods, indexed_job, ray_cluster
    from anadil.preflight.text_size import num_shards

    workers = recipe.clean.workers or DEFAULT_WORKERS
    pods = CleanPods(recipe=recipe, name="anadil-clean", namespace=recipe.cluster.namespace)
    if recipe.clean.engine == "ray":
        return ray_cluster(pods, workers)
    if recipe.clean.engine == "job":
        folder = f"{recipe.cluster.work or '/work'}/tasks-map-shard"
        shards = num_shards(sizes, recipe.clean.shard_bytes, workers)
        return indexed_job(pods, folder, "0" * 64, shards, workers)
    raise RecipeError(
        "--dry-run: clean.engine is `processes`, which sends nothing to a cluster; set job or ray"
    )
