"""How a stage starts: its command line, Kubeflow Pipelines' executor input, its exit code."""

import argparse
import contextlib
import errno
import importlib
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from anadil import __version__
from anadil.core import errors
from anadil.core import log as logs
from anadil.core.errors import AnadilError, PreflightError, RecipeError, RetryableError, Stopped
from anadil.core.stages import BUILT_IN, STAGES, Stage
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime import kfp, sagemaker, step_status
from anadil.runtime.execute import execute
from anadil.runtime.job import Stop, in_group
from anadil.runtime.remake import allow_remake
from anadil.runtime.threads import wait_asleep

log = logging.getLogger(__name__)

TERMINATION_LOG = Path("/dev/termination-log")
"""Where Kubernetes reads the last words of a container, 4,096 bytes at most."""
PARENT_VARIABLE = "ANADIL_PARENT"
"""Process id of the `anadil run` that started this process and must not be outlived."""
END_VARIABLE = "ANADIL_END"
"""File for the end of a process that torchrun need not start again; each torchrun has one of its own."""
DETERMINISTIC = (2, 3, 4, 5, 6, 7, errors.BUG)
"""Exit codes that another start would end with too."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_WORDS = re.compile(r"No space left on device|Disk quota exceeded|\bos error (28|122|27)\b|disk is full")
"""Of libraries that pass on the system's words but not its number: safetensors, Arrow, SQLite."""
FAILED = (errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ENOTCONN, errno.ESHUTDOWN)
"""A disk that fails, and network file systems that have lost their server: Linux' errno(3)."""
FAILED_WORDS = re.compile(r"Input/output error|Stale file handle|\bos error (5|116|121)\b")
CUT_OFF = re.compile(
    r"inline_container\.cc.*unexpected pos|PytorchStreamWriter failed writing|\d+ requested and \d+ written"
)
"""What torch 2.13 and numpy 2 say of a file that could not be written whole, without the system's words."""
HARDWARE = re.compile(
    r"\b(CUDA|CUBLAS|CUDNN|NCCL)|Accelerator|Dist\w*Error|Rendezvous\w*Error|Connection (closed|reset|refused)"
    r"|Broken pipe|[Tt]imed out"
)
"""In the words of a bug: a device or another machine may be to blame, which the next start may not have.
Source: class names and texts of torch 2.13."""
LOST = "lost another process of the job"
"""In the words of a process that ended because another one had: the end of that one says why."""
FOLLOWS = re.compile(rf"{LOST}|Rendezvous\w*Error|Dist(Store|Network)Error")
"""The same in the words of any version: older ones called it a bug."""


def main(name: str, argv: Sequence[str] | None = None, prog: str = "", *, verbose: bool = False) -> int:
    """Run one stage from its command line and return the exit code."""
    stage = STAGES[name]
    arguments = list(sys.argv[1:] if argv is None else argv)
    wait_asleep()
    options = parser(stage, prog).parse_args(arguments)
    logs.set_up(name, container=not prog, verbose=verbose)
    return guarded(lambda: _start(stage, options, arguments))


def parser(stage: Stage, prog: str = "") -> argparse.ArgumentParser:
    """The command line of a stage: a recipe, a URI for each input, one for the output."""
    built = argparse.ArgumentParser(
        prog=prog or f"python -m anadil.{stage.name}",
        description=f"{stage.name}: {stage.summary}",
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
    add_remake_option(built)
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


def add_remake_option(built: argparse.ArgumentParser) -> None:
    """`--remake`, the same in every command that may train."""
    text = "train again, though a model of the same recipe and inputs is there that another program made"
    built.add_argument("--remake", action="store_true", help=text)


def guarded(work: Callable[[], int]) -> int:
    """Turn errors into one clear message and their exit code; a traceback only for a bug."""
    try:
        code = work()
        if sys.stdout:
            sys.stdout.flush()  # here, where a pipe that is gone can be told from a bug
        return code
    except AnadilError as error:
        return last_words(str(error), error.exit_code)
    except KeyboardInterrupt:
        return last_words("interrupted; run the same command again to go on", errors.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read stdout went away (`| head`); say nothing, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        # The border of the program: whatever nobody foresaw is a bug.
        if told := disk_error(error):
            return last_words(str(told), told.exit_code)
        number = error.errno if isinstance(error, OSError) else None
        if number in (errno.EACCES, errno.EPERM, errno.EROFS):
            return last_words(f"{error}; grant access or choose another place", PreflightError.exit_code)
        log.exception("bug in anadil %s", __version__)
        return last_words(f"bug: {type(error).__name__}: {error}", errors.BUG, logged=True)


def disk_error(error: BaseException) -> AnadilError | None:
    """What an error says of the disk, however deep libraries have wrapped it; None where nothing."""
    seen: BaseException | None = error
    while seen is not None:
        number = seen.errno if isinstance(seen, OSError) else None
        if number in FULL or FULL_WORDS.search(str(seen)):
            return PreflightError(f"disk full: {seen}; free space or choose another storage.root")
        if number in FAILED or FAILED_WORDS.search(str(seen)):
            return RetryableError(
                f"the disk or the way to it failed: {seen}; run the same command again, and look at the machine's "
                "kernel log where it comes again"
            )
        if CUT_OFF.search(str(seen)):
            return PreflightError(
                f"disk full, most likely: a file could not be written whole ({seen}); free space or choose another "
                "storage.root"
            )
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def last_words(message: str, code: int, *, logged: bool = False) -> int:
    """Log why the program ends, and leave it where the platform looks for it; the exit code."""
    if threading.current_thread() is threading.main_thread():
        # One more signal would break into these words with a traceback and exit code 1.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
    if not logged:
        log.error("%s", message)
    words = json.dumps({"exit_code": code, "message": logs.masked(message)[:600]})
    if END_VARIABLE in os.environ and in_group() and ends_the_same(code, message):
        # The first of a machine's processes says why; the others follow.
        end = Path(os.environ[END_VARIABLE])
        with contextlib.suppress(OSError), end.open("x", encoding="utf-8") as file:
            file.write(words)
    with contextlib.suppress(OSError):
        if TERMINATION_LOG.exists():
            TERMINATION_LOG.write_text(words)
    sagemaker.tell_failure(words)
    return code


def ends_the_same(code: int | None, message: str) -> bool:
    """Whether another start of a process that ended so would end so too."""
    return code in DETERMINISTIC and not (code == errors.BUG and HARDWARE.search(message))


def _ended_before() -> int | None:
    """Tell the end of an earlier start under the same torchrun again, if another would be the same; its exit code."""
    if END_VARIABLE not in os.environ or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    try:
        told = json.loads(Path(os.environ[END_VARIABLE]).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return last_words(told["message"], told["exit_code"])


def _start(stage: Stage, options: argparse.Namespace, arguments: list[str]) -> int:
    if options.self_test:
        importlib.import_module(f"anadil.{stage.name}.run")
        print(f"anadil {__version__} {stage.name}: ready")
        return 0
    ended = _ended_before()
    if ended is not None:
        return ended
    # From here on, so that process 1 of a container, which has no default, also stops while it loads.
    Stop().listen()
    die_with_parent()
    if options.remake:
        allow_remake()
    if options.executor_input:
        return _from_pipeline(stage, options.executor_input, arguments)
    recipe = load_recipe(options.recipe, options.set)
    inputs = {word: uri for word in stage.reads if (uri := getattr(options, word))}
    missing = [f"--{word}" for word in stage.reads if word not in inputs and word not in stage.optional]
    if missing:
        raise RecipeError(f"{stage.name}: {' '.join(missing)} missing; give the URI of each artifact to read")
    processes = _num_processes(stage, recipe)
    if processes > 1 or _has_rendezvous(stage):
        return _under_torchrun(stage, arguments, processes)
    files = getattr(options, stage.files_flag) if stage.files_flag else []
    made = execute(stage, recipe, inputs, files, options.out)
    if int(os.environ.get("RANK", "0")) == 0:
        print(made.uri)
    return 0


def die_with_parent() -> None:
    """Get SIGTERM when the `anadil run` that started us dies, so that no stage is orphaned."""
    parent = os.environ.get(PARENT_VARIABLE)
    if not parent or not sys.platform.startswith("linux"):
        return
    import ctypes

    pr_set_pdeathsig = 1  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != int(parent):
        raise Stopped("the run that started this stage is gone; start it again")


def _num_processes(stage: Stage, recipe: Recipe) -> int:
    """Training processes to start on this machine; 1 in a process that torchrun has started."""
    if not stage.distributed or in_group():
        return 1
    num_gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        num_gpus = min(num_gpus, sum(name.strip() not in ("", "-1") for name in visible.split(",")))
    return recipe.cluster.processes_per_node or max(1, num_gpus)


def _has_rendezvous(stage: Stage) -> bool:
    """Whether the platform says where the machines of a job meet, in torchrun's own variables."""
    if not stage.distributed or in_group():
        return False
    os.environ.update(sagemaker.rendezvous())
    return "PET_RDZV_ENDPOINT" in os.environ or "PET_MASTER_ADDR" in os.environ


def _under_torchrun(stage: Stage, arguments: list[str], processes: int) -> int:
    # By name, as the stage itself: torch is loaded only where training begins.
    torchrun = importlib.import_module("anadil.runtime.torchrun")
    code: int = torchrun.launch(f"anadil.{stage.name}", arguments, processes)
    return code


def _from_pipeline(stage: Stage, text: str, arguments: list[str]) -> int:
    """Run with the input of a KFP container component, and write what its launcher reads."""
    call = kfp.parse_executor_input(stage, text)
    recipe = load_recipe(call.recipe)
    is_first = int(os.environ.get("RANK", "0")) == 0
    with step_status.record_step_status(
        recipe.storage.root, call.run if is_first else "", stage.name
    ) as record:
        processes = _num_processes(stage, recipe)
        if processes > 1:
            record.exit_code = _under_torchrun(stage, arguments, processes)
            return record.exit_code
        made = execute(stage, recipe, call.inputs, (), None)
        record.uri = made.uri
        if is_first:
            kfp.write_outputs(stage, call.outputs, made.uri, made.manifest)
    return 0
