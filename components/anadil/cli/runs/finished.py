"""`anadil list`, `compare`, `trace` and `remove`: what runs have left."""

import argparse
import json
import logging
import shlex
from dataclasses import asdict
from pathlib import Path

from anadil.artifacts import artifact, storage
from anadil.artifacts.uri import MANIFEST
from anadil.cli.options import add_output_option, number, place
from anadil.cli.output import print_result
from anadil.core.errors import DataError
from anadil.core.files import atomic_file, write_atomic
from anadil.core.format import counted, human_bytes, with_article
from anadil.core.stages import FLOW
from anadil.core.table import Table
from anadil.release.compare.comparison import compare
from anadil.release.runs import COLUMNS, WORDS, WORK, list_runs
from anadil.watch.data.run_notes import notes_of

log = logging.getLogger(__name__)

SHOWN = 20  # Runs that are read unless more are asked for.
RUN = "a work directory (its latest run), the URI of a report, scores, adapter or model, or an id of `anadil list`"
KINDS = {*(stage.writes for stage in FLOW), "counts"}
"""Artifacts of stages, and the word counts of the tokenizer stage."""


def add_list(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.description = f"{command.description}, the latest first"
    add_run_places(command)
    help_text = "maximum number of runs to show, 0: all (default: %(default)s)"
    command.add_argument("--limit", type=number(0), default=SHOWN, metavar="N", help=help_text)
    add_output_option(command)
    command.set_defaults(command=show_runs)


def add_run_places(command: argparse.ArgumentParser) -> None:
    """`--work` and `--root`: the places of runs."""
    help_text = "work directory of `anadil run` (default: %(default)s)"
    command.add_argument("--work", type=place, default=WORK, metavar="DIR", help=help_text)
    help_text = "storage.root of runs elsewhere: a directory or s3:// URI"
    command.add_argument("--root", metavar="URI", help=help_text)


def show_runs(options: argparse.Namespace) -> int:
    """Print the runs; where there is none, say how to start one."""
    runs = list_runs(options.work, options.root, limit=options.limit or None)
    notes = notes_of(runs)
    # The name stands beside the id, as on the page, where a run has one.
    column = any(note.words for note in notes)
    rows = [
        (row[0], note.words, *row[1:]) if column else row
        for row, note in zip(runs.rows(), notes, strict=True)
    ]
    heads = (COLUMNS[0], "name", *COLUMNS[1:]) if column else COLUMNS
    table = Table("Runs", heads, rows, words=(1, *(each + 1 for each in WORDS)) if column else WORDS)
    print_result(
        [run.to_dict() | asdict(note) for run, note in zip(runs, notes, strict=True)],
        table.lines() if runs else (),
        options.output,
    )
    if runs.hidden:
        log.info("%d of %d runs; --limit 0 shows all", len(runs), len(runs) + runs.hidden)
    if not runs:
        places = (options.work if Path(options.work).is_dir() else "", options.root)
        where = " and ".join(filter(None, places))
        here = "" if options.work == WORK else f" --work {shlex.quote(options.work)}"
        log.info(
            "no runs%s; start one on built-in data: anadil run%s. Look elsewhere: --work DIR, --root URI",
            f" in {where}" if where else f": {options.work} does not exist",
            here,
        )
    return 0


def add_compare(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.description = f"{command.description}; differences are B minus A"
    command.add_argument("a", metavar="A", help=RUN)
    command.add_argument("b", metavar="B", help="the other run")
    add_run_places(command)
    add_output_option(command)
    command.set_defaults(command=show_comparison)


def show_comparison(options: argparse.Namespace) -> int:
    """Print a comparison."""
    result = compare(options.a, options.b, work=options.work, root=options.root)
    print_result(result.to_dict(), result.lines(), options.output)
    return 0


def add_trace(command: argparse.ArgumentParser) -> None:
    """Put the command among those of `anadil`."""
    command.description = f"{command.description}. Exits 5 where a byte differs from its digest, 3 where an artifact is not found."
    help_text = (
        "model, merged or adapter artifact, its merged directory, an export of it, or models:/NAME@ALIAS"
    )
    command.add_argument("model", metavar="MODEL", help=help_text)
    help_text = "document to look up in the training data: an id, a URL, a source such as news.jsonl:17, or a file with one of these a line"
    command.add_argument("--document", nargs="+", action="extend", default=[], metavar="ID|URL|FILE", help=help_text)  # fmt: skip
    help_text = "further storage root to search for artifacts"
    command.add_argument("--root", nargs="+", action="extend", default=[], metavar="URI", help=help_text)
    help_text = "also write a public summary of the training content, by the template of the EU's AI Office"
    command.add_argument("--summary", type=place, metavar="FILE.md", help=help_text)
    help_text = "write the summary of a small or medium enterprise, which lists fewer domains"
    command.add_argument("--sme", action="store_true", help=help_text)
    help_text = "also write id, source and URL of every document that it was trained on, as JSON lines"
    command.add_argument("--list", type=place, metavar="FILE.jsonl", help=help_text)
    add_output_option(command)
    command.set_defaults(command=trace, needs="clean")


def trace(options: argparse.Namespace) -> int:
    """Print the trace, then refuse a broken chain."""
    from anadil.release.trace.chain import trace as follow
    from anadil.release.trace.training_summary import training_summary

    result = follow(options.model, roots=options.root, documents=options.document)
    print_result(result.as_json(), result.lines(), options.output)
    if options.summary:
        write_atomic(Path(options.summary), training_summary(result, is_sme=options.sme))
    if options.list:
        with (
            atomic_file(Path(options.list)) as draft,
            draft.open("w", encoding="utf-8", errors="replace") as file,
        ):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in result.list_documents())
    result.check()
    return 0


def add_remove(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.description = f"{command.description}; the next run makes it again"
    command.add_argument("uri", nargs="+", metavar="URI", help="an artifact: a directory or s3:// URI")
    command.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    command.set_defaults(command=remove)


def remove(options: argparse.Namespace) -> int:
    """Remove artifacts, each with all that lies in its place."""
    for uri in options.uri:
        manifest = artifact.read_manifest(uri)
        if manifest is None:
            raise DataError(f"{uri}: no artifact there (no {MANIFEST}); nothing is removed")
        if manifest.kind not in KINDS:
            raise DataError(
                f"{uri}: holds {with_article(manifest.kind)}, which is not an artifact of a stage; nothing is removed"
            )
    for uri in options.uri:
        sizes = storage.store(uri).directory_sizes(uri)
        what = f"{uri}: {counted(len(sizes), 'file')}, {human_bytes(sum(sizes.values()))}"
        if options.dry_run:
            log.info("would remove %s", what)
            continue
        storage.store(uri).remove_directory(uri)
        log.info("removed %s", what)
    return 0
