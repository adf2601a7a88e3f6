"""Process that writes a run's tracking as TensorBoard event files: `python -m anadil.runtime.tensorboard_sender SPOOL`.

Each stage has a directory of its own, since a stage that begins again hides the later steps of its directory. Each try
begins with the first line, in empty directories, so no event is there twice.
"""

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anadil.core.install import install
from anadil.recipe.tracking_address import tensorboard_folder
from anadil.runtime.event_file import TensorBoardWriter
from anadil.runtime.mlflow_spool import DONE, FILES, destination
from anadil.runtime.sender_process import IsClosed, follow_lines, follow_spools, sender_options

STATE = "tensorboard.json"
"""File in which the sender notes the directory of the run."""
TEXTS = ("recipe.yaml", "report.md")
"""Small files that TensorBoard shows as texts; others stay in the spool."""


class EventFiles:
    """The event files of one run: its own, and those of its stages."""

    def __init__(self, folder: Path, spool: Path) -> None:
        self.folder = folder
        self._spool = spool
        self._writers: dict[str, TensorBoardWriter] = {}
        self._steps: dict[str, int] = {}
        self._said: dict[tuple[str, str], float] = {}

    def send(self, stage: str, line: Mapping[str, Any]) -> None:
        """Write what a line says that TensorBoard can show.

        Raises:
            OSError: The directory takes no more.
        """
        kind, of_run = line["kind"], str(line["kind"]).startswith("run ")
        if kind == "metrics" and line["step"] is not None:
            self._curve(stage, line)
        elif kind in ("metrics", "run metrics"):
            self._figures("" if of_run else stage, line)
        elif kind in ("params", "run params"):
            rows = "\n".join(f"| {name} | `{value}` |" for name, value in line["values"].items())
            self._writer("" if of_run else stage).add_text("settings", f"| key | value |\n|---|---|\n{rows}")
        elif kind == "files":
            for name in TEXTS:
                if file := line["values"].get(name):
                    text = (self._spool / FILES / file).read_text(encoding="utf-8", errors="replace")
                    shown = text if name.endswith(".md") else f"```\n{text}\n```"
                    self._writer("").add_text(name.partition(".")[0], shown)

    def close(self) -> None:
        """End the files."""
        for each in self._writers.values():
            each.close()

    def _figures(self, owner: str, line: Mapping[str, Any]) -> None:
        values = {f"final/{name}" if owner else name: each for name, each in line["values"].items()}
        # Several stages say the figures that decide; said again they would be points of a curve.
        new = {name: each for name, each in values.items() if self._said.get((owner, name)) != each}
        self._said |= {(owner, name): each for name, each in new.items()}
        self._writer(owner).add(new, 0, line["time"] / 1000)

    def _curve(self, stage: str, line: Mapping[str, Any]) -> None:
        writer, step = self._writer(stage), int(line["step"])
        if step < self._steps.get(stage, 0):
            writer.begin(max(0, step - 1))
        self._steps[stage] = step
        writer.add(line["values"], step, line["time"] / 1000)

    def _writer(self, stage: str) -> TensorBoardWriter:
        if stage not in self._writers:
            self._writers[stage] = TensorBoardWriter(self.folder / stage)
            self._writers[stage].begin(0)
        if not self._writers[stage].is_open:
            raise OSError(f"{self.folder / stage}: no event file can be written there")
        return self._writers[stage]


def run_folder(spool: Path, name: str) -> Path:
    """Directory of the run of a spool, emptied: a new one, or that of an earlier try.

    Raises:
        OSError: It cannot be made.
    """
    state = spool / STATE
    if state.is_file():
        folder = Path(json.loads(state.read_text(encoding="utf-8"))["folder"])
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    root = Path(tensorboard_folder(destination(spool))).expanduser().absolute()
    root.mkdir(parents=True, exist_ok=True)
    folder, number = root / name.replace("/", "-").replace(":", "."), 1
    # Two runs of one recipe may begin in the same minute.
    while folder.exists():
        number += 1
        folder = root / f"{name.replace('/', '-').replace(':', '.')} ({number})"
    folder.mkdir()
    state.write_text(json.dumps({"folder": str(folder)}), encoding="utf-8")
    return folder


def main() -> int:
    """`python -m anadil.runtime.tensorboard_sender SPOOL`: write a spool as event files, and those beside it that wait."""
    options = sender_options("anadil.runtime.tensorboard_sender", main.__doc__)

    def send(spool: Path, is_closed: IsClosed) -> None:
        files = EventFiles(run_folder(spool, options.name if spool == options.spool else spool.name), spool)
        try:
            for stage, line in follow_lines(spool, is_closed):
                files.send(stage, line)
        finally:
            files.close()
        (spool / DONE).touch()

    return follow_spools(options, send, _trouble)


def _trouble(spools: Sequence[Path], send: Callable[[Path], None]) -> str:
    """Write all spools; return why that failed, empty if it did not."""
    try:
        import tensorboardX  # noqa: F401  the writer itself does without it
    except ImportError as error:
        return f"TensorBoard needs a package that is not installed: {error}; {install('tensorboard')}"
    try:
        for spool in spools:
            if not (spool / DONE).exists():
                send(spool)
    except (OSError, ValueError, KeyError) as error:
        return f"TensorBoard: {type(error).__name__}: {error}; correct tracking.uri, or make room there"
    return ""


if __name__ == "__main__":
    sys.exit(main())
