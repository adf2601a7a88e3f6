"""`anadil cluster delete`: the parts in reverse order; data stay.

Repositories with images are never removed, and the file system only where that is asked for:
then what its directories owe to S3 is written there first.
"""

import logging
from collections.abc import Iterator

from anadil.errors import DataError, PreflightError
from anadil.hyperpod.parts import Part, Parts
from anadil.hyperpod.requests import FILE_SYSTEM, Request
from anadil.hyperpod.waiting import until

log = logging.getLogger(__name__)

CLUSTER_S = 3_600.0
EXPORT_S = 24 * 3_600.0
GONE = "gone"


def deletions(parts_of: Parts | None, *, cluster: str, with_file_system: bool) -> list[Request]:
    """The calls that `delete` makes, in order.

    Args:
        parts_of: What is there; None shows them for a file system whose id is not known.
        cluster: Name of the HyperPod cluster.
        with_file_system: Whether the file system goes too.
    """
    found = [
        Request(
            service="sagemaker",
            operation="DeleteCluster",
            what=f"HyperPod cluster {cluster}",
            arguments={"ClusterName": cluster},
        )
    ]
    if with_file_system:
        system = parts_of.file_system() if parts_of else {"FileSystemId": FILE_SYSTEM}
        found += list(_storage(parts_of, system)) if system else []
    return found


def _storage(parts: Parts | None, system: Part) -> Iterator[Request]:
    name = str(system["FileSystemId"])
    linked = parts.links(name) if parts else []
    exporting = [link["FileSystemPath"].lstrip("/") for link in linked if _exports(link)]
    if exporting:
        yield Request(
            service="fsx",
            operation="CreateDataRepositoryTask",
            what=f"export of {', '.join(exporting)}",
            arguments={
                "FileSystemId": name,
                "Type": "EXPORT_TO_REPOSITORY",
                "Paths": exporting,
                "Report": {"Enabled": False},
            },
        )
    yield Request(
        service="fsx",
        operation="DeleteFileSystem",
        what=f"file system {name}",
        arguments={"FileSystemId": name},
    )


def _exports(link: Part) -> bool:
    return bool(link.get("S3", {}).get("AutoExportPolicy", {}).get("Events"))


def delete(parts: Parts, *, confirmed: bool, with_file_system: bool) -> list[str]:
    """Remove the cluster, and the file system where that is asked for; the parts that went.

    Raises:
        PreflightError: It is not confirmed, or what the file system owes to S3 could not be written.
    """
    name = parts.description.name
    if not confirmed:
        also = " and its file system with all files that are not on S3" if with_file_system else ""
        raise PreflightError(f"{name}: would delete the HyperPod cluster{also}; say --yes to do it")
    gone = []
    for request in deletions(parts, cluster=name, with_file_system=with_file_system):
        if request.operation == "DeleteCluster" and parts.cluster() is None:
            log.info("%s: is not there", request.what)
            continue
        answer = parts.call(request)
        log.info("%s: asked for", request.what)
        if request.operation == "DeleteCluster":
            _await_no_cluster(parts)
        elif request.operation == "CreateDataRepositoryTask":
            _await_export(parts, str(answer["DataRepositoryTask"]["TaskId"]))
            continue
        gone.append(request.what)
    kept = parts.file_system() if parts.description.fsx and not with_file_system else None
    if kept:
        log.info("file system %s is kept; --with-file-system removes it too", kept["FileSystemId"])
    if parts.description.ecr:
        log.info("the repositories under %s/ are kept", parts.description.ecr.prefix)
    return gone


def _await_no_cluster(parts: Parts) -> None:
    def look() -> tuple[str, str]:
        cluster = parts.cluster()
        return (
            (str(cluster["ClusterStatus"]), str(cluster.get("FailureMessage", ""))) if cluster else (GONE, "")
        )

    name = parts.description.name
    until(f"HyperPod cluster {name}", look, good=(GONE,), bad=("Failed",), patience_s=CLUSTER_S)


def _await_export(parts: Parts, task: str) -> None:
    from anadil.core.aws import aws_errors

    def look() -> tuple[str, str]:
        with aws_errors(f"export {task}", "fsx:DescribeDataRepositoryTasks"):
            tasks = parts.client("fsx").describe_data_repository_tasks(TaskIds=[task])["DataRepositoryTasks"]
        if not tasks:
            raise DataError(f"export {task}: is not there any more; run the same command again")
        status = tasks[0].get("Status", {})
        failed = status.get("FailedCount", 0)
        if tasks[0]["Lifecycle"] == "SUCCEEDED" and failed:
            raise PreflightError(
                f"export {task}: {failed} files could not be written to S3, so the file system is kept; see the "
                "role of the link and its bucket"
            )
        return str(tasks[0]["Lifecycle"]), str(tasks[0].get("FailureDetails", {}).get("Message", ""))

    until(
        f"export {task}",
        look,
        good=("SUCCEEDED",),
        bad=("FAILED", "CANCELED", "CANCELING"),
        patience_s=EXPORT_S,
    )
