"""`anadil trace MODEL`: trace a model back to every file that it was trained on."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from anadil.cli.options import add_output_option, place
from anadil.cli.output import print_json, print_lines


def add_trace(name: str, commands: Any, text: str) -> None:
    """Put the command among those of `anadil`."""
    help_text = f"{text}. Exits 5 where a byte differs from its digest, 3 where an artifact is not found."
    command = commands.add_parser(name, help=text, description=help_text)
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
    command.set_defaults(command=trace)


def trace(options: argparse.Namespace) -> int:
    """Print the trace, then refuse a broken chain."""
    from anadil.artifacts.storage import LocalStore
    from anadil.preflight.this_machine import require_packages

    require_packages("clean")
    from anadil.release.trace.lineage import trace as follow
    from anadil.release.trace.training_summary import training_summary

    result = follow(options.model, roots=options.root, documents=options.document)
    if options.output == "json":
        print_json(result.as_json())
    else:
        print_lines(result.lines())
    if options.summary:
        text = training_summary(result, is_sme=options.sme)
        LocalStore().write(options.summary, text.encode(errors="replace"))
    if options.list:
        _write_list(result, Path(options.list))
    result.check()
    return 0


def _write_list(result: Any, path: Path) -> None:
    """Write the documents one at a time, beside, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8", errors="replace") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in result.list_documents())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
