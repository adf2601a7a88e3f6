"""`anadil cluster delete`: remove the cluster, and on request the file system, after its exports to S3."""

import logging
from collections.abc import Iterator

from anadil.core.errors import DataError, PreflightError
from anadil.launch.hyperpod.requests import FILE_SYSTEM, Request
from anadil.launch.hyperpod.resources import ClusterResources, failure_of, wait_until

log = logging.getLogger(__name__)

CLUSTER_S = 3_600.0
EXPORT_S = 24 * 3_600.0
GONE = "gone"


def deletions(
    resources: ClusterResources | None, *, cluster: str, with_file_system: bool
) -> Iterator[Request]:
    """Yield the calls that `delete` makes, in order; without resources, for a file system whose id is not known."""
    yield Request("sagemaker", "DeleteCluster", f"HyperPod cluster {cluster}", {"ClusterName": cluster})
    system = resources.file_system() if resources else {"FileSystemId": FILE_SYSTEM}
    if not with_file_system or not system:
        return
    name = str(system["FileSystemId"])
    links = resources.links(name) if resources else {}
    exports = [
        path.lstrip("/")
        for path, link in links.items()
        if link.get("S3", {}).get("AutoExportPolicy", {}).get("Events")
    ]
    if exports:
        arguments = {
            "FileSystemId": name,
            "Type": "EXPORT_TO_REPOSITORY",
            "Paths": exports,
            "Report": {"Enabled": False},
        }
        yield Request("fsx", "CreateDataRepositoryTask", f"export of {', '.join(exports)}", arguments)
    yield Request("fsx", "DeleteFileSystem", f"file system {name}", {"FileSystemId": name})


def delete_cluster(resources: ClusterResources, *, confirmed: bool, with_file_system: bool) -> list[str]:
    """Remove the cluster, and the file system where that is asked for; return what was removed.

    Raises:
        PreflightError: It is not confirmed, or an export of the file system to S3 failed.
    """
    name = resources.description.name
    if not confirmed:
        also = " and its file system with all files that are not on S3" if with_file_system else ""
        raise PreflightError(f"{name}: would delete the HyperPod cluster{also}; say --yes to do it")
    removed = []
    # A list, because what exists is asked before anything is removed.
    for request in list(deletions(resources, cluster=name, with_file_system=with_file_system)):
        if request.operation == "DeleteCluster" and resources.cluster() is None:
            log.info("%s: does not exist", request.what)
            continue
        answer = resources.create(request)
        log.info("%s: requested", request.what)
        if request.operation == "CreateDataRepositoryTask":
            _await_export(resources, str(answer["DataRepositoryTask"]["TaskId"]))
            continue
        if request.operation == "DeleteCluster":

            def state_of() -> tuple[str, str]:
                cluster = resources.cluster() or {"ClusterStatus": GONE}
                return str(cluster["ClusterStatus"]), str(cluster.get("FailureMessage", ""))

            wait_until(request.what, state_of, good=(GONE,), bad=("Failed",), timeout_s=CLUSTER_S)
        removed.append(request.what)
    system = resources.file_system() if resources.description.fsx and not with_file_system else None
    if system:
        log.info("file system %s is kept; --with-file-system removes it too", system["FileSystemId"])
    if resources.description.ecr:
        log.info("the repositories under %s/ are kept", resources.description.ecr.prefix)
    return removed


def _await_export(resources: ClusterResources, task: str) -> None:
    what = f"export {task}"

    def state_of() -> tuple[str, str]:
        answer = resources.call(Request("fsx", "DescribeDataRepositoryTasks", what, {"TaskIds": [task]}))
        result = next(iter(answer["DataRepositoryTasks"]), None)
        if result is None:
            raise DataError(f"{what}: does not exist any more; run the same command again")
        failed = result.get("Status", {}).get("FailedCount", 0)
        if result["Lifecycle"] == "SUCCEEDED" and failed:
            raise PreflightError(
                f"{what}: {failed} files could not be written to S3, so the file system is kept; see the role of "
                "the link and its bucket"
            )
        return str(result["Lifecycle"]), failure_of(result)

    bad = ("FAILED", "CANCELED", "CANCELING")
    wait_until(what, state_of, good=("SUCCEEDED",), bad=bad, timeout_s=EXPORT_S)
