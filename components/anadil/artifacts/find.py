"""Artifacts found by digest where a run keeps them: `<root>/<word>/<key>`."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.uri import MANIFEST, absolute, join
from anadil.core.errors import DataError, IntegrityError

READERS = 8
"""Manifests that are read at a time; boto3's client keeps ten connections."""


def root_of(uri: str) -> str:
    """The directory that would be `storage.root` if the artifact lies where a run has put it."""
    return absolute(uri).rsplit("/", 2)[0] or "/"


def roots_of(uri: str, manifest: Manifest, more: Iterable[str] = ()) -> list[str]:
    """Storage roots of an artifact's inputs: the one that it is in, its recipe's `storage.root`, and `more`."""
    section = manifest.recipe.get("storage")
    stated = section.get("root") if isinstance(section, dict) else None
    roots = [root_of(uri), *([stated] if isinstance(stated, str) else []), *map(absolute, more)]
    return list(dict.fromkeys(roots))


def artifacts_below(roots: Sequence[str], word: str) -> Iterator[tuple[str, Manifest]]:
    """Yield every finished artifact of a kind below some roots, newest first; damaged manifests are skipped."""
    for root in dict.fromkeys(roots):
        place = join(root, word)
        uris = storage.store(place).directories(place)[::-1]
        with ThreadPoolExecutor(READERS, thread_name_prefix="manifests") as pool:
            # A batch at a time: most callers want one of the newest.
            for first in range(0, len(uris), READERS):
                batch = uris[first : first + READERS]
                for uri, manifest in zip(batch, pool.map(_readable, batch), strict=True):
                    if manifest is not None and manifest.kind == word:
                        yield uri, manifest


def _readable(uri: str) -> Manifest | None:
    try:
        return artifact.parse_manifest(storage.store(uri).read(join(uri, MANIFEST)), uri)
    except (IntegrityError, DataError):  # damaged, or removed meanwhile: whoever reads it is told
        return None


def find_artifact(roots: Sequence[str], word: str, digest: str) -> tuple[str, Manifest] | None:
    """The artifact with this digest, or None where it lies below none of the roots."""
    matches = (pair for pair in artifacts_below(roots, word) if pair[1].digest == digest)
    return next(matches, None)


def read_verified(uri: str, manifest: Manifest, name: str) -> bytes:
    """The bytes of one small file of an artifact, as its manifest vouches for them."""
    entry = manifest.files.get(name)
    if entry is None:
        raise IntegrityError(f"{uri}: its manifest names no {name}; {artifact.remedy_of(uri)}")
    content = storage.store(uri).read(join(uri, name))
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise IntegrityError(f"{uri}/{name}: differs from its manifest; {artifact.remedy_of(uri)}")
    return content


def read_table(uri: str, manifest: Manifest, name: str) -> dict[str, object]:
    """The JSON table in a file of an artifact; empty where the artifact has no such file."""
    if name not in manifest.files:
        return {}
    table = json.loads(read_verified(uri, manifest, name))
    return table if isinstance(table, dict) else {}
