"""`anadil clean explain | diff | verify | plan`: trace a document, compare corpora, verify one, estimate a run."""

import argparse
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anadil.cli.options import add_output_option, add_work_option
from anadil.cli.output import print_data, print_json, print_lines, print_table
from anadil.core.errors import DataError
from anadil.core.format import counted
from anadil.core.stages import STAGES
from anadil.runtime.entry_point import add_recipe_options, add_source_option

log = logging.getLogger(__name__)


def add_diff(command: argparse.ArgumentParser) -> None:
    """Add the options of `anadil clean diff`."""
    command.add_argument("first", metavar="A", help="corpus, directory or s3:// URI")
    command.add_argument("second", metavar="B", help="the corpus to compare it with")
    add_output_option(command)
    command.set_defaults(command=diff)


def add_verify(command: argparse.ArgumentParser) -> None:
    """Add the options of `anadil clean verify`."""
    command.add_argument("corpus", metavar="CORPUS", help="directory or s3:// URI")
    add_output_option(command)
    command.set_defaults(command=check_corpus)


def add_explain(command: argparse.ArgumentParser) -> None:
    """Add the options of `anadil clean explain`."""
    text = "record to trace, such as news.jsonl:17, as in rejected/ or by its path; a file alone means its first record"
    command.add_argument("source", metavar="SOURCE", help=text)
    add_recipe_options(command)
    add_source_option(command)
    text = "inputs to search, instead of SOURCE's own file or those of the recipe"
    command.add_argument("--raw", nargs="+", default=[], metavar="URI", help=text)
    text = "a corpus made of them: shows what the document duplicates, and lets SOURCE be an id"
    command.add_argument("--corpus", metavar="URI", help=text)
    text = "with -o json or yaml, add the whole text after each step as `texts`"
    command.add_argument("--texts", action="store_true", help=text)
    text = "format of the output (default: %(default)s, with the limits that the document breaks; the others have all limits)"
    add_output_option(command, "table", "yaml", "json", text=text)
    command.set_defaults(command=explain)


def explain(options: argparse.Namespace) -> int:
    """Print every step for one document of the inputs."""
    import tempfile

    from anadil.artifacts.prefetch import fetch
    from anadil.clean.filters.judge_record import Settings
    from anadil.clean.filters.lists import compile_lists
    from anadil.clean.inspect.explain import explain_record, find_record, in_corpus, step_texts
    from anadil.recipe.load import load_recipe
    from anadil.runtime.flow import recipe_of_step
    from anadil.runtime.job import external_files, external_side_files

    stage = STAGES["clean"]
    source, rows = options.source, []
    files = options.raw or _paths(source)
    recipe, _ = recipe_of_step(stage, load_recipe(options.recipe, options.set), options.of_source, files)
    if options.corpus:
        rows = in_corpus(fetch(options.corpus, "corpus")[0], source)
        source = rows[0]["source"] if rows else source
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        compile_lists(recipe, external_side_files(stage, recipe), Path(folder))
        settings = Settings(recipe=recipe, lists_folder=Path(folder))
        inputs = options.raw or _paths(source)
        raw = find_record(external_files(stage, recipe, inputs), source, settings)
        steps = explain_record(raw, settings)
        _check_identity(options.source, steps["id"], rows)
        if options.texts and options.output != "table":
            steps["texts"] = step_texts(raw, settings)
    steps |= {"in_corpus": rows} if options.corpus else {}
    if options.output == "table":
        _print_steps(steps)
    else:
        print_data(steps, options.output)
    return 0


def _check_identity(asked: str, number: str, rows: list[dict[str, Any]]) -> None:
    """Refuse another record than the id asks for. Where a place asks, only warn."""
    known = [row["id"] for row in rows]
    if not rows or number in known:
        return
    why = (
        f"{rows[0]['source']}: the record there is now document {number}, and the corpus has {' and '.join(known[:3])} of it; "
        "the file has changed since, or recipe or version differ from the corpus's: give those that made it"
    )
    if asked in known:
        raise DataError(why)
    log.warning("%s", why)


def _paths(source: str) -> list[str]:
    """Return the file that SOURCE is the path of, or of a place in; none where it names a file of the inputs."""
    places = (source, source.rpartition(":")[0])
    return [each for each in places if each and Path(each).is_file()][:1]


def _print_steps(steps: dict[str, Any]) -> None:
    """The verdict, each step on a line, how the judged text begins, and the limits that it breaks."""
    rules, _ = steps.pop("rules", []), steps.pop("fails")
    begins = [step.pop("begins") for step in steps.values() if isinstance(step, dict) and "begins" in step]
    first = {"source": steps.pop("source"), "verdict": steps.pop("verdict")}
    rows = {key: text for key, value in (first | steps).items() if (text := _line(value))}
    print_table(rows | ({"begins": " ".join(begins[-1].split())} if begins else {}), "table")
    broken = [rule for rule in rules if rule["verdict"] != "passes"]
    for rule in broken:
        sys.stdout.write(
            f"{rule['verdict']:<8}  {rule['rule']:<22}  {rule['statistic']:<26}  {rule['value']:>10,g}  "
            f"at {rule['at']} {rule['limit']:,g}\n"
        )
    if rules:
        sys.stdout.write(f"passes    {len(rules) - len(broken)} other limits; -o yaml lists them\n")


def _line(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_line(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list | tuple):
        return "; ".join(map(_line, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def diff(options: argparse.Namespace) -> int:
    """Print what differs between two corpora."""
    from anadil.artifacts.prefetch import fetch
    from anadil.clean.inspect.verify import compare_corpora

    result = compare_corpora(*(fetch(uri, "corpus")[0] for uri in (options.first, options.second)))
    if options.output == "json":
        print_json(result)
        return 0
    for name, (before, after) in result["counts"].items():
        sys.stdout.write(f"{name:<28} {before:>14,} {after:>14,} {after - before:>+14,}\n")
    for change in result["changed"]:
        documents, examples = counted(change["documents"], "document"), ", ".join(change["examples"])
        print_lines([f"{change['before']} -> {change['after']}: {documents}, such as {examples}"])
    for name in ("other_text", "only_in_first", "only_in_second"):
        sys.stdout.write(f"{name.replace('_', ' '):<28} {result[name]:>14,}\n")
    return 0


def check_corpus(options: argparse.Namespace) -> int:
    """Compare a corpus with its manifest, its rows and its counts."""
    from anadil.artifacts.prefetch import fetch
    from anadil.clean.inspect.verify import verify_corpus

    print_table(verify_corpus(*fetch(options.corpus, "corpus")), options.output)
    return 0


def add_clean_plan(command: argparse.ArgumentParser) -> None:
    """Add `anadil clean plan`."""
    command.description = f"{command.description}; only the sizes of files are read"
    add_recipe_options(command)
    add_source_option(command)
    text = "files instead of the recipe's clean.inputs"
    command.add_argument("--raw", metavar="URI", nargs="+", default=[], help=text)
    text = "print the manifest that clean.engine (job, ray) would send to the cluster"
    command.add_argument("--dry-run", action="store_true", help=text)
    add_output_option(command)
    command.set_defaults(command=_plan)


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
        print_data(_manifest(recipe, sizes), options.output)
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


def add_corpus(command: argparse.ArgumentParser) -> None:
    """Add `anadil corpus import`."""
    verbs = command.add_subparsers(metavar="VERB", required=True)
    about = (
        "make a corpus of files without changing a text: no rule judges them, near duplicates stay, and only empty documents and "
        "copies are dropped and counted; prints the URI of the corpus"
    )
    command = verbs.add_parser("import", help=command.description, description=about)
    text = (
        "files, globs, s3:// or hf:// URIs of text: .jsonl, .json, .parquet, .csv, .tsv, .txt, .warc.wet.gz"
    )
    command.add_argument("files", metavar="FILE", nargs="+", help=text)
    help_text = "language of the text (default: that of the recipe)"
    command.add_argument("--language", metavar="ID", help=help_text)
    add_recipe_options(command)
    add_source_option(command)
    add_work_option(command)
    text = "where to write the artifact; left out, a place under storage.root, else under --work"
    command.add_argument("--out", metavar="URI", help=text)
    command.set_defaults(command=import_corpus)


def import_corpus(options: argparse.Namespace) -> int:
    """Run the stage `clean` on the files, and say what the corpus can be used for."""
    from anadil.cli.runs.run import with_root, work_of
    from anadil.recipe.load import load_recipe
    from anadil.runtime.entry_point import main

    # As a run by such a recipe would name them, so that it finds this corpus.
    key = f"sources.{options.of_source}.inputs" if options.of_source else "clean.inputs"
    values = {"clean.as_is": True, key: options.files}
    values |= {"language": options.language} if options.language else {}
    settings = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    settings += options.set
    recipe = with_root(load_recipe(options.recipe, settings), work_of(options))
    arguments = ["--recipe", options.recipe]
    for each in (*settings, f"storage.root={json.dumps(recipe.storage.root)}"):
        arguments += ["--set", each]
    for option, value in (("--source", options.of_source), ("--out", options.out)):
        arguments += [option, value] if value else []
    code = main("clean", arguments, prog="anadil corpus import", verbose=options.verbose)
    if code == 0:
        log.info(
            "next: anadil tokenizer --corpus URI; a run imports it where its recipe has clean.as_is: true"
        )
    return code
