"""A job that is there exactly once: made, found again, or made anew after a failure."""

import logging
import os
import time

from anadil import artifact
from anadil.errors import DataError, RecipeError, RetryableError
from anadil.launch.api import Api
from anadil.launch.connect import own_namespace
from anadil.launch.follow import Pace, now
from anadil.launch.job import DETACHED_ANNOTATION, HEARTBEAT_ANNOTATION, SPEC_ANNOTATION, TARGET_ANNOTATION
from anadil.launch.kinds import Kind, Object, annotations, true_conditions
from anadil.launch.ledger import LEDGER_ANNOTATION, Ledger

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""Jobs of the same name that may come and go while we make ours."""
WORKFLOW_VARIABLES = ("ANADIL_WORKFLOW_NAME", "ANADIL_WORKFLOW_UID")
"""The Argo workflow that a pipeline's step belongs to."""


def start(api: Api, kind: Kind, manifest: Object, pace: Pace, *, detach: bool) -> Object:
    """The job of a manifest: a new one, or the one of the same name that does the same.

    Args:
        api: Where it shall run.
        kind: Of the job.
        manifest: As rendered.
        pace: How long to wait for an old job to go.
        detach: Whether nobody will follow it.

    Raises:
        RecipeError: A job of the name does something else.
        RetryableError: Jobs of the name come and go.
    """
    body = prepared(api.namespace, manifest, detach=detach)
    name = body["metadata"]["name"]
    for _ in range(ATTEMPTS):
        made = api.create(kind, body)
        if made is not None:
            log.info("made %s %s in namespace %s", kind.title, name, api.namespace)
            return made
        found = api.get(kind, name)
        if found is None:
            continue  # gone in this moment
        if "deletionTimestamp" not in found["metadata"]:
            if not _is_useless(kind, found, body):
                return _adopted(api, kind, found, detach=detach)
            log.info("%s: of an earlier start; deleting it and starting anew", name)
            api.delete(kind, name, found["metadata"]["uid"])
        await_gone(api, kind, name, found["metadata"]["uid"], pace)
    raise RetryableError(f"{name}: other jobs of this name come and go; see who makes them and run again")


def prepared(namespace: str, manifest: Object, *, detach: bool) -> Object:
    """The manifest with all that is not of the work itself: place, owner, who follows it."""
    metadata = manifest["metadata"]
    followed = {HEARTBEAT_ANNOTATION: now(), LEDGER_ANNOTATION: Ledger().dump()}
    added = {DETACHED_ANNOTATION: "true"} if detach else followed
    owners = workflow_owner(namespace)
    return {
        **manifest,
        "metadata": {
            **metadata,
            "namespace": namespace,
            "annotations": {**(metadata.get("annotations") or {}), **added},
            **({"ownerReferences": owners} if owners else {}),
        },
    }


def workflow_owner(namespace: str) -> list[Object]:
    """The workflow as owner, so that the job goes with the run; none outside the workflow's namespace.

    An owner in another namespace counts as absent, and the job would be collected at once.
    """
    name, uid = (os.environ.get(variable, "") for variable in WORKFLOW_VARIABLES)
    if not name or not uid or own_namespace() != namespace:
        return []
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": name, "uid": uid}
    return [{**owner, "controller": False, "blockOwnerDeletion": False}]


def await_gone(api: Api, kind: Kind, name: str, uid: str, pace: Pace) -> None:
    """Wait until a deleted job and its pods are gone: new pods have the names of the old.

    Raises:
        RetryableError: It takes too long.
    """
    deadline = time.monotonic() + pace.deletion_s
    while True:
        found = api.get(kind, name)
        is_there = found is not None and found["metadata"]["uid"] == uid
        if not is_there and (found is not None or not api.pods(kind.pods_of(name))):
            return
        if time.monotonic() > deadline:
            raise RetryableError(
                f"{name}: still not deleted after {pace.deletion_s:g} s; look at its finalizers and at its pods, "
                "then run the same command again"
            )
        time.sleep(min(pace.poll_s, 2.0))


def _is_useless(kind: Kind, found: Object, body: Object) -> bool:
    """Whether a job of our name has ended without what we want of it.

    Raises:
        RecipeError: It does something else.
    """
    name = found["metadata"]["name"]
    conditions = true_conditions(found)
    has_failed = "Failed" in conditions
    if annotations(found).get(SPEC_ANNOTATION) != annotations(body).get(SPEC_ANNOTATION):
        if has_failed:
            return True  # most likely a correction of what failed
        raise RecipeError(
            f"{name}: a job of this name does something else (another recipe, image or cluster); "
            f"`anadil stop {name}` ends it, or give --run another name"
        )
    target = annotations(found).get(TARGET_ANNOTATION, "")
    return has_failed or (kind.done in conditions and artifact.read_manifest(target) is None)


def _adopted(api: Api, kind: Kind, found: Object, *, detach: bool) -> Object:
    name = found["metadata"]["name"]
    log.info("%s is there already; %s", name, "leaving it to itself" if detach else "following it")
    change = {DETACHED_ANNOTATION: "true" if detach else None}
    adopted = api.patch(kind, name, {"metadata": {"annotations": change}})
    if adopted is None:
        raise DataError(f"{name}: deleted in this moment; run the same command again")
    return adopted
