"""How a stage starts: its command line, Kubeflow Pipelines' executor input, its exit code.

`execute` finds the artifact that a recipe and inputs lead to, and makes it only if it is not
there: into `<out>.partial`, sealed by its manifest, then moved to `<out>` in one step.
"""

import argparse
import contextlib
import errno
import hashlib
import importlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anadil import __version__, artifact, errors, executor, storage
from anadil import log as logs
from anadil.artifact import Manifest
from anadil.config import Recipe
from anadil.errors import (
    AnadilError,
    DataError,
    IntegrityError,
    PreflightError,
    RecipeError,
    RetryableError,
    Stopped,
)
from anadil.flow import BUILT_IN, STAGES, Stage
from anadil.lock import locked
from anadil.recipe import load_recipe
from anadil.stage import Figures, Job, Run, Stop, external_files, image_name, origin_of
from anadil.tracking import has_unsent, tracked
from anadil.units import human_figure, human_seconds

log = logging.getLogger(__name__)

TERMINATION_LOG = Path("/dev/termination-log")
"""Where Kubernetes reads the last words of a container, 4,096 bytes at most."""
PARENT_VARIABLE = "ANADIL_PARENT"
"""Process id of the `anadil run` that started this process and must not be outlived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished artifact."""

    uri: str
    manifest: Manifest


def main(name: str, argv: Sequence[str] | None = None, prog: str = "", *, verbose: bool = False) -> int:
    """Run one stage from its command line and return the exit code."""
    stage = STAGES[name]
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parser(stage, prog).parse_args(arguments)
    logs.set_up(name, container=not prog, verbose=verbose)
    return guarded(lambda: _start(stage, options, arguments))


def parser(stage: Stage, prog: str = "") -> argparse.ArgumentParser:
    """The command line of a stage: a recipe, a URI for each input, one for the output."""
    built = argparse.ArgumentParser(
        prog=prog or f"python -m anadil.{stage.name}",
        description=f"{stage.name}: {stage.says}",
        epilog="Prints the URI of the artifact. An artifact that is there already is not made again.",
    )
    add_recipe_options(built)
    for word in stage.reads:
        text = f"{word} artifact to read{' (optional)' if word in stage.optional else ''}"
        built.add_argument(f"--{word}", metavar="URI", help=text)
    if stage.files_flag:
        text = f"files, globs or s3:// URIs to read; left out, the recipe's {stage.files}"
        built.add_argument(f"--{stage.files_flag}", metavar="URI", nargs="+", default=[], help=text)
    text = f"where to write the {stage.writes}; left out, a place under storage.root"
    built.add_argument("--out", metavar="URI", help=text)
    text = "what Kubeflow Pipelines passes instead of the options above"
    built.add_argument("--executor-input", metavar="JSON", help=text)
    text = "load everything that the stage needs, say so and exit"
    built.add_argument("--self-test", action="store_true", help=text)
    return built


def add_recipe_options(built: argparse.ArgumentParser) -> None:
    """`--recipe` and `--set`, the same in every command."""
    text = f"recipe file, or the name of a shipped recipe (default: {BUILT_IN})"
    built.add_argument("--recipe", default=BUILT_IN, metavar="RECIPE", help=text)
    text = "override one key of the recipe, such as pretrain.batch_size=8"
    built.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)


def guarded(work: Callable[[], int]) -> int:
    """Turn errors into one clear message and their exit code; a traceback only for a bug."""
    try:
        code = work()
        if sys.stdout:
            sys.stdout.flush()  # here, where a pipe that is gone can be told from a bug
        return code
    except AnadilError as error:
        return _last_words(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _last_words("interrupted; run the same command again to go on", errors.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read stdout went away (`| head`); say nothing, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        # The border of the program: whatever nobody foresaw is a bug.
        number = error.errno if isinstance(error, OSError) else None
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "No space left on device" in str(error):
            message = f"disk full: {error}; free space or choose another storage.root"
            return _last_words(message, PreflightError.exit_code)
        if number in (errno.EACCES, errno.EPERM, errno.EROFS):
            return _last_words(f"{error}; grant access or choose another place", PreflightError.exit_code)
        log.exception("bug in anadil %s", __version__)
        return _last_words(f"bug: {type(error).__name__}: {error}", errors.BUG, logged=True)


def _last_words(message: str, code: int, *, logged: bool = False) -> int:
    if not logged:
        log.error("%s", message)
    words = json.dumps({"exit_code": code, "message": logs.masked(message)[:600]})
    with contextlib.suppress(OSError):
        if TERMINATION_LOG.exists():
            TERMINATION_LOG.write_text(words)
    return code


def _start(stage: Stage, options: argparse.Namespace, arguments: list[str]) -> int:
    if options.self_test:
        importlib.import_module(f"anadil.{stage.name}.run")
        print(f"anadil {__version__} {stage.name}: ready")
        return 0
    die_with_parent()
    if options.executor_input:
        return _from_pipeline(stage, options.executor_input, arguments)
    recipe = load_recipe(options.recipe, options.set)
    inputs = {word: uri for word in stage.reads if (uri := getattr(options, word))}
    missing = [f"--{word}" for word in stage.reads if word not in inputs and word not in stage.optional]
    if missing:
        raise RecipeError(f"{stage.name}: {' '.join(missing)} missing; give the URI of each artifact to read")
    processes = _num_processes(stage, recipe)
    if processes > 1:
        return _under_torchrun(stage, arguments, processes)
    files = getattr(options, stage.files_flag) if stage.files_flag else []
    outcome = execute(stage, recipe, inputs, files, options.out)
    if int(os.environ.get("RANK", "0")) == 0:
        print(outcome.uri)
    return 0


def die_with_parent() -> None:
    """Get SIGTERM when the `anadil run` that started us dies, so that no stage is orphaned."""
    parent = os.environ.get(PARENT_VARIABLE)
    if not parent or not sys.platform.startswith("linux"):
        return
    import ctypes
    import signal

    pr_set_pdeathsig = 1  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != int(parent):
        raise Stopped("the run that started this stage is gone; start it again")


def _num_processes(stage: Stage, recipe: Recipe) -> int:
    """Training processes to start on this machine; 1 in a process that torchrun has started."""
    if not stage.distributed or "RANK" in os.environ:
        return 1
    num_gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        num_gpus = min(num_gpus, sum(name.strip() not in ("", "-1") for name in visible.split(",")))
    return recipe.cluster.processes_per_node or max(1, num_gpus)


def _under_torchrun(stage: Stage, arguments: list[str], processes: int) -> int:
    # By name, as the stage itself: torch is loaded only where training begins.
    torchrun = importlib.import_module("anadil.model.torchrun")
    code: int = torchrun.launch(f"anadil.{stage.name}", arguments, processes)
    return code


def _from_pipeline(stage: Stage, text: str, arguments: list[str]) -> int:
    """Run with the input of a KFP container component, and write what its launcher reads."""
    call = executor.parse(stage, text)
    recipe = load_recipe(call.recipe)
    processes = _num_processes(stage, recipe)
    if processes > 1:
        return _under_torchrun(stage, arguments, processes)
    outcome = execute(stage, recipe, call.inputs, (), None)
    if int(os.environ.get("RANK", "0")) == 0:
        executor.write_outputs(stage, call.outputs, outcome.uri, outcome.manifest)
    return 0


def execute(
    stage: Stage, recipe: Recipe, inputs: dict[str, str], files: Sequence[str], out: str | None
) -> Outcome:
    """Find or make the artifact of a stage.

    Args:
        stage: Which stage.
        recipe: The whole recipe; its `storage.root` is used where `out` is left out.
        inputs: Artifact word -> URI.
        files: Outside files instead of the recipe's.
        out: Where to write.

    Raises:
        AnadilError: Of every kind, each with its remedy.
    """
    stop = Stop()
    stop.listen()  # before the slow part: as process 1 of a container nobody else does
    manifests = {word: _required(uri, word) for word, uri in inputs.items()}
    outside = external_files(stage, recipe, files)
    origin = origin_of(stage, recipe, manifests, outside)
    root = recipe.storage.root
    if out is None and root is None:
        raise RecipeError("storage.root: not set; give --out, or a directory or s3:// URI for all artifacts")
    target = _place(out) if out else storage.join(str(root), stage.writes, artifact.key_of(origin))
    found = _reusable(target, origin)
    if found:
        return found
    storage.refuse_occupied(target)
    siblings = storage.store(root).directories(storage.join(root, stage.writes)) if root else []
    log.info("%s", _why(siblings, origin))
    rank = int(os.environ.get("RANK", "0"))
    work = _work_directory(target)
    with locked(work) if rank == 0 else contextlib.nullcontext():
        # The process that we waited for may have made it.
        found = _reusable(target, origin) if rank == 0 else None
        if found and "RANK" in os.environ:
            # The other processes of this group did not see it and would wait for this one.
            raise RetryableError(f"{target}: another run has just made it; run the same command again")
        if found:
            return found
        return _make(stage, recipe, inputs, outside, origin, target, work, rank, stop)


def _place(out: str) -> str:
    # `x/` and `.` would put what lies beside the artifact into it.
    return out.rstrip("/") if "://" in out else str(Path(out).absolute())


def _required(uri: str, word: str) -> Manifest:
    manifest = artifact.read_manifest(uri)
    if manifest is None:
        raise DataError(f"{uri}: no finished {word} there; run the stage that writes it first")
    return manifest


def _reusable(target: str, origin: dict[str, str]) -> Outcome | None:
    manifest = artifact.read_manifest(target)
    if manifest is None:
        return None
    if manifest.key != artifact.key_of(origin):
        causes = "; ".join(artifact.differences(manifest.origin, origin)[:5])
        raise RecipeError(
            f"{target}: holds a {manifest.kind} made from something else ({causes}); "
            "artifacts are written once: give another --out or remove it"
        )
    log.info("reused %s", target)
    _say_figures(manifest.figures)
    return Outcome(uri=target, manifest=manifest)


def _why(siblings: list[str], origin: dict[str, str]) -> str:
    """Why the artifact is made: compared with the latest of its kind."""
    latest = None
    with contextlib.suppress(IntegrityError):  # a damaged neighbour is no reason to stop
        latest = artifact.read_manifest(siblings[-1]) if siblings else None
    if latest is None:
        return "running: nothing to reuse yet"
    causes = artifact.differences(latest.origin, origin)
    shown = "; ".join(causes[:4])
    return f"running because {shown}{f' and {len(causes) - 4} more' if len(causes) > 4 else ''}"


def _work_directory(target: str) -> Path:
    """A local directory for what outlives a killed run, the same one for the same artifact."""
    if "://" not in target:
        return Path(f"{target}.work")
    root = Path(os.environ.get("ANADIL_WORK", Path(tempfile.gettempdir()) / "anadil-work"))
    return root / hashlib.sha256(target.encode()).hexdigest()[:16]


def _make(
    stage: Stage,
    recipe: Recipe,
    inputs: dict[str, str],
    files: tuple[str, ...],
    origin: dict[str, str],
    target: str,
    work: Path,
    rank: int,
    stop: Stop,
) -> Outcome:
    partial = Path(f"{target}.partial") if "://" not in target else work / "partial"
    # Alone only: the other processes of a group would wait for this one.
    if "RANK" not in os.environ and (sealed := _sealed(partial, origin)):
        return _put(partial, target, work, sealed)
    fetched = {word: artifact.fetch(uri, word)[0] for word, uri in inputs.items()}
    job = Job(
        recipe=recipe, inputs=fetched, files=files, out=partial, work=work,
        base_cache=_base_cache(recipe), stop=stop,
    )  # fmt: skip
    figures = _run(stage, job, origin, target, rank)
    if rank > 0:
        return Outcome(uri=target, manifest=_placeholder(stage, origin))
    manifest = artifact.seal(
        partial, kind=stage.writes, origin=origin, records=job.records, varying=job.varying, figures=figures,
        recipe=recipe.model_dump(mode="json"), program={"version": __version__, "image": image_name()},
    )  # fmt: skip
    return _put(partial, target, work, manifest)


def _run(stage: Stage, job: Job, origin: dict[str, str], target: str, rank: int) -> Figures:
    """Run the stage's code, tracked; a failure leaves nothing of `job.out`."""
    started = time.monotonic()
    run: Run = importlib.import_module(f"anadil.{stage.name}.run").run
    settings = {name.removeprefix("recipe "): v for name, v in origin.items() if name.startswith("recipe ")}
    key = artifact.key_of(origin)
    if rank == 0:
        shutil.rmtree(job.out, ignore_errors=True)
    with tracked(stage.name, job.recipe, job.work) as tracker:
        tracker.params(settings)
        tracker.tags({"anadil.version": __version__, "anadil.artifact": target, "anadil.key": key})
        try:
            if rank == 0:
                job.out.mkdir(parents=True)
            figures = run(replace(job, tracker=tracker))
        except BaseException as error:
            tracker.end("KILLED" if isinstance(error, Stopped | KeyboardInterrupt) else "FAILED")
            if rank == 0:
                shutil.rmtree(job.out, ignore_errors=True)
            raise
        figures["seconds"] = round(time.monotonic() - started, 1)
        tracker.metrics({name: value for name, value in figures.items() if isinstance(value, int | float)})
        tracker.end("FINISHED")
    return figures


def _sealed(partial: Path, origin: dict[str, str]) -> Manifest | None:
    """The manifest of what was made whole but not moved, because an upload failed."""
    with contextlib.suppress(IntegrityError):
        manifest = artifact.read_manifest(str(partial))
        if manifest and manifest.key == artifact.key_of(origin):
            artifact.verify(partial, manifest, str(partial))
            return manifest
    return None


def _put(partial: Path, target: str, work: Path, manifest: Manifest) -> Outcome:
    storage.store(target).put_directory(partial, target)
    if not has_unsent(work):
        shutil.rmtree(work, ignore_errors=True)
    _say_figures(manifest.figures)
    return Outcome(uri=target, manifest=manifest)


def _placeholder(stage: Stage, origin: dict[str, str]) -> Manifest:
    """What ranks other than 0 return: they write nothing."""
    return Manifest(kind=stage.writes, key=artifact.key_of(origin), origin=origin, files={})


def _base_cache(recipe: Recipe) -> Path:
    root = recipe.storage.root
    if root and "://" not in root:
        return Path(root) / "base"
    return Path(os.environ.get("ANADIL_CACHE", Path.home() / ".cache" / "anadil")) / "base"


def _say_figures(figures: Figures) -> None:
    shown = {name: value for name, value in figures.items() if name != "seconds"}
    line = ", ".join(f"{name.replace('_', ' ')} {human_figure(value)}" for name, value in shown.items())
    seconds = figures.get("seconds")
    took = f" ({human_seconds(float(seconds))})" if seconds is not None else ""
    log.info("%s%s", line, took, extra={"figures": figures})
