"""Process that hands a run's tracking to W&B: `python -m anadil.runtime.wandb_sender SPOOL`.

W&B's client does not say which lines the server has taken. So each try begins with the first line, under the same id, and
overwrites what an earlier one has sent. The client's own variables hold: WANDB_API_KEY, WANDB_BASE_URL, WANDB_MODE, WANDB_DIR.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from anadil.core.install import install
from anadil.recipe.tracking_address import wandb_project
from anadil.runtime.reachable import answers
from anadil.runtime.sender_process import PROBE_S, IsClosed, follow_lines, noted, sender
from anadil.runtime.tracking_spool import FILES, WANDB_STATE, destination

FINISH_S = 60.0
"""How long the end of a run waits for uploads; whoever waits for the sender waits less."""
NOTE_TAG = "mlflow.note.content"
"""Tag whose text is the run's notes."""
COPIES = "wandb-files"
"""Directory in the spool with the small files under their own names, from which the client uploads them."""
OFFLINE = ("offline", "dryrun", "disabled")
LIMITS = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
SETTINGS = {
    "disable_git": True, "save_code": False, "x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True,
    "x_save_requirements": False, "finish_timeout": FINISH_S, "finish_timeout_raises": True,
}  # fmt: skip
"""The sender's process is not what trains: its machine, code and packages would mislead, and tell more than was asked."""


class WandbRun:
    """One run of W&B, which holds all lines of one spool."""

    def __init__(self, run: Any, spool: Path) -> None:
        self.run = run
        self.failed = False
        self._spool = spool
        self._stages: dict[str, str] = {}
        self._curves: set[str] = set()

    def send(self, stage: str, line: Mapping[str, Any]) -> None:
        """Hand one line to the client."""
        kind = line["kind"]
        if kind == "metrics" and line["step"] is not None:
            self._curve(stage, line)
        elif kind in ("metrics", "run metrics"):
            self.run.summary.update(line["values"])
        elif kind in ("params", "run params"):
            self._settings(line["values"])
        elif kind in ("tags", "run tags"):
            self._tags("" if kind == "run tags" else f"{stage}/", line["values"])
        elif kind == "inputs":
            self._settings({f"{stage}/data/{each['name']}": each for each in line["datasets"]})
        elif kind == "model":
            words = {name: line[name] for name in ("uri", "digest", "artifact")}
            self._settings({f"model/{line['name']}": words})
            self.run.summary.update(line["metrics"])
        elif kind == "files":
            self._files(line["values"])
        elif kind == "end":
            self.failed = line["status"] != "FINISHED"

    def _curve(self, stage: str, line: Mapping[str, Any]) -> None:
        # Steps of stages are counted apart, and W&B's own step only grows: a stage that begins again goes back.
        axis, values = f"{stage}_step", {}
        for name, value in line["values"].items():
            key = name if self._stages.setdefault(name, stage) == stage else f"{stage}/{name}"
            if key not in self._curves:
                self.run.define_metric(key, step_metric=axis)
                self._curves.add(key)
            values[key] = value
        self.run.log({**values, axis: line["step"], "_timestamp": line["time"] / 1000})

    def _settings(self, values: Mapping[str, Any]) -> None:
        self.run.config.update(dict(values), allow_val_change=True)

    def _tags(self, prefix: str, values: Mapping[str, str]) -> None:
        if note := values.get(NOTE_TAG):
            self.run.notes = note
        labels = {
            f"{prefix}{name}": value for name, value in values.items() if not name.startswith("mlflow.")
        }
        self._settings(labels)

    def _files(self, files: Mapping[str, str]) -> None:
        from wandb import Html

        folder = self._spool / COPIES
        for name, file in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._spool / FILES / file, path)
            self.run.save(str(path), base_path=str(folder), policy="now")
            if name == "report.html":
                self.run.log({"report": Html(str(path), inject=False)})


def main() -> int:
    """`python -m anadil.runtime.wandb_sender SPOOL`: send a spool to its project of W&B, and those beside it that wait."""
    os.environ.update(LIMITS | os.environ)
    return sender("wandb", main.__doc__, _send, _trouble)


def _trouble(spools: Sequence[Path], send: Callable[[Path], None]) -> str:
    """Send all spools; return why that failed, empty if it did not."""
    try:
        import wandb
    except ImportError as error:
        return f"W&B needs a package that is not installed: {error}; {install('wandb')}"
    settings = wandb.setup().settings
    server = "" if settings.mode in OFFLINE else settings.base_url
    try:
        for spool in spools:
            noted(spool / WANDB_STATE, server=server)
        if server and not answers(server, PROBE_S):
            return (
                f"W&B is away: nothing answers at {server}; WANDB_MODE=offline writes files for `wandb sync`"
            )
        for spool in spools:
            send(spool)
    except wandb.errors.UsageError as error:
        return f"W&B refuses: {error}; set WANDB_API_KEY (pods: cluster.secrets), or WANDB_MODE=offline"
    except Exception as error:  # noqa: BLE001  the client has errors of many libraries: another try may help
        return f"W&B is away: {type(error).__name__}: {error}"
    return ""


def _send(spool: Path, options: argparse.Namespace, is_closed: IsClosed) -> None:
    """Send one spool from its first line on, until it is closed and nothing is left."""
    import wandb

    entity, project = wandb_project(destination(spool))
    state = spool / WANDB_STATE
    run_id = noted(state).get("id") or noted(state, id=uuid4().hex[:16])["id"]
    place = Path(os.environ.get("WANDB_DIR") or spool)
    # An earlier try that did not come to its end has left half a run.
    for earlier in place.glob(f"wandb/*run-*-{run_id}"):
        shutil.rmtree(earlier, ignore_errors=True)
    run = wandb.init(
        entity=entity, project=project, id=run_id, name=options.name, group=options.run or None,
        settings=wandb.Settings(root_dir=str(place), **SETTINGS),
    )  # fmt: skip
    noted(state, page=run.url or "", folder=str(Path(run.dir).parent))
    handed = WandbRun(run, spool)
    for stage, line in follow_lines(spool, is_closed):
        handed.send(stage, line)
    run.finish(exit_code=int(handed.failed))


if __name__ == "__main__":
    sys.exit(main())
