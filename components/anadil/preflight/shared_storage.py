"""The place of artifacts of a run on a cluster: whether it can be written, read and cleared from here."""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

from anadil.artifacts import storage
from anadil.artifacts.uri import MANIFEST, join
from anadil.core.errors import AnadilError
from anadil.preflight.check import CheckResult, failed, passed
from anadil.recipe.sections import Recipe

CONTENT = b"anadil doctor was here; this object may be removed\n"


def check_storage(recipe: Recipe) -> Iterator[CheckResult]:
    """Write, read and remove a small object below an `s3://` root; look a directory up in the volumes."""
    root = recipe.storage.root
    if root is None:
        remedy = "set storage.root: s3://BUCKET/PREFIX, or a directory of one of cluster.volumes"
        yield failed("storage", "storage.root is not set", remedy)
    elif "://" not in root:
        yield _on_a_volume(recipe, root)
    else:
        place = _probe(root)
        detail = f"an object could be written, read and removed below {place}, with your rights; pods have their own"
        yield passed("storage", detail)


def _on_a_volume(recipe: Recipe, root: str) -> CheckResult:
    volumes = [volume for volume in recipe.cluster.volumes if not volume.read_only]
    for volume in volumes:
        if volume.holds(root):
            detail = f"{root} is on claim {volume.claim}; pods alone can tell whether it can be written"
            return passed("storage", detail)
    remedy = "use s3://, or name the claim of that directory in cluster.volumes"
    detail = f"{root} is on none of cluster.volumes that can be written, so no pod would see it"
    return failed("storage", detail, remedy)


def _probe(root: str) -> str:
    """Leave nothing behind, also where reading fails."""
    place = join(root, f"doctor-{uuid.uuid4().hex[:12]}")
    store = storage.store(root)
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        source = Path(folder) / "probe"
        source.mkdir()
        (source / MANIFEST).write_bytes(CONTENT)
        readable = False
        try:
            store.put_directory(source, place)
            store.read(join(place, MANIFEST))
            readable = True
        finally:
            # What stopped the writing is the cause to tell, not that the clearing fails too.
            with nullcontext() if readable else suppress(AnadilError):
                store.remove_directory(place)
    return root
