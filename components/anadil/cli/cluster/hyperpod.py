"""`anadil cluster create|describe|delete`: a HyperPod cluster on Amazon EKS, from one file."""

import argparse
from pathlib import Path
from typing import Any

from anadil.cli.options import add_output_option
from anadil.cli.output import print_data, print_json, print_lines
from anadil.launch.hyperpod.config import load_description

FILE = "description of the cluster, such as examples/hyperpod/cluster.yaml"


def add_cluster(name: str, commands: Any, text: str) -> None:
    """Add `anadil cluster` with its verbs."""
    cluster = commands.add_parser(name, help=text, description=f"{text} on Amazon EKS, from one file")
    verbs = cluster.add_subparsers(metavar="VERB", required=True)
    create = verbs.add_parser("create", help="create what does not exist, and wait for it")
    create.add_argument("file", type=Path, metavar="FILE", help=FILE)
    create.add_argument("--dry-run", action="store_true", help="print every request, and call nothing")
    create.add_argument("--no-wait", action="store_true", help="return once the cluster is requested")
    add_output_option(create, "yaml", "json")
    create.set_defaults(command=_create)
    describe = verbs.add_parser("describe", help="show the state of every resource and node")
    describe.add_argument("file", type=Path, metavar="FILE", help=FILE)
    add_output_option(describe)
    describe.set_defaults(command=_describe)
    delete = verbs.add_parser("delete", help="delete the cluster; data and images stay")
    delete.add_argument("file", type=Path, metavar="FILE", help=FILE)
    delete.add_argument(
        "--yes", action="store_true", help="confirm the deletion; without it nothing is deleted"
    )
    text = "delete the file system too, after its new files are exported to S3"
    delete.add_argument("--with-file-system", action="store_true", help=text)
    delete.add_argument("--dry-run", action="store_true", help="print every request, and call nothing")
    add_output_option(delete, "yaml", "json")
    delete.set_defaults(command=_delete)


def _create(options: argparse.Namespace) -> int:
    description = load_description(options.file)
    if options.dry_run:
        from anadil.launch.hyperpod.requests import requests_of

        print_data([request.as_dict() for request in requests_of(description)], options.output)
        return 0
    from anadil.launch.hyperpod.commands import create_cluster
    from anadil.launch.hyperpod.resources import ClusterResources

    print_data(create_cluster(ClusterResources(description), wait=not options.no_wait), options.output)
    return 0


def _describe(options: argparse.Namespace) -> int:
    from anadil.launch.hyperpod.resources import ClusterResources, describe_cluster

    rows = describe_cluster(ClusterResources(load_description(options.file)))
    if options.output == "json":
        print_json([row._asdict() for row in rows])
        return 0
    widths = [
        max(len(text) for text in column)
        for column in zip(*((row.part, row.state) for row in rows), strict=True)
    ]
    print_lines(f"{row.part:<{widths[0]}}  {row.state:<{widths[1]}}  {row.detail}".rstrip() for row in rows)
    return 0


def _delete(options: argparse.Namespace) -> int:
    from anadil.launch.hyperpod.commands import delete_cluster, deletions
    from anadil.launch.hyperpod.resources import ClusterResources

    description = load_description(options.file)
    if options.dry_run:
        asked = deletions(None, cluster=description.name, with_file_system=options.with_file_system)
        print_data([request.as_dict() for request in asked], options.output)
        return 0
    gone = delete_cluster(
        ClusterResources(description), confirmed=options.yes, with_file_system=options.with_file_system
    )
    for what in gone:
        print(f"{what}: deleted")
    return 0
