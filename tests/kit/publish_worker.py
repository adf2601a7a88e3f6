"""A run that has made an artifact and publishes it: `python -m tests.kit.publish_worker NAME URI FOLDER FILES [PAUSE_S]`.

Its files hold its name, so that what two runs have written can be told apart. It says `begun` when its
first file is there, and at the end `reused` or `published`.
"""

import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact, lease, s3
from anadil.artifacts.uri import MANIFEST
from anadil.core.stages import STAGES
from anadil.runtime import execute, termination
from anadil.runtime.planned_artifact import MadeArtifact, PlannedArtifact

ORIGIN = {"stage": "clean", "recipe": "the same"}


def build(folder: Path, name: str, num_files: int, file_bytes: int = 20) -> artifact.Manifest:
    """Make and seal an artifact; equal sizes, other bytes for each name."""
    (folder / "train").mkdir(parents=True)
    text = f"by {name} ".encode()
    for number in range(num_files):
        (folder / f"train/part-{number:03d}").write_bytes((text * file_bytes)[:file_bytes])
    (folder / "stats.json").write_bytes(text)
    return artifact.seal(folder, kind="corpus", origin=ORIGIN)


@dataclass(frozen=True, kw_only=True)
class Built(PlannedArtifact):
    """An artifact that was made in a place of its own."""

    folder: Path

    @property
    def partial(self) -> Path:
        return self.folder

    @property
    def work(self) -> Path:
        return self.folder.with_suffix(".work")


def put(folder: Path, uri: str, manifest: artifact.Manifest) -> MadeArtifact:
    """Publish it as a stage does."""
    planned = Built(stage=STAGES["clean"], origin=ORIGIN, out=uri, files=(), side_files={}, folder=folder)
    return execute._put(planned, manifest)


def main() -> int:
    name, uri, folder, num_files, file_bytes, pause_s = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logging.getLogger("anadil").setLevel(logging.INFO)
    lease.RENEW_S, lease.SILENT_S = 0.4, 2.0
    partial = Path(folder) / f"{name}.partial"
    if MANIFEST in {path.name for path in partial.glob("*")}:
        manifest = artifact.read_manifest(str(partial))
        assert manifest is not None
    else:
        manifest = build(partial, name, int(num_files), int(file_bytes))
    if "://" in uri:

        def wait(http_response: Any, **_: Any) -> None:
            if not http_response.url.endswith(".claim"):
                print("begun", flush=True)
                time.sleep(float(pause_s))

        s3.s3_client().meta.events.register("after-call.s3.PutObject", wait)
        s3.s3_client().meta.events.register("after-call.s3.UploadPart", wait)
    made = put(partial, uri, manifest)
    print("published" if made.manifest.files == manifest.files else "reused", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(termination.exit_code_of(main))
