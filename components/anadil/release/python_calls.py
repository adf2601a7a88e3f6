"""`anadil.run` and `anadil.stage`: commands from Python, each in a process of its own.

A notebook keeps its signals, logs and event loop. The log goes to stderr as it comes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from anadil.core import errors
from anadil.core.errors import AnadilError, RecipeError
from anadil.core.stages import BUILT_IN, FLOW, STAGES
from anadil.recipe.fields import did_you_mean
from anadil.recipe.load import load_recipe
from anadil.release.runs import WORK
from anadil.runtime.environment import PARENT_VARIABLE
from anadil.runtime.flow import options_of
from anadil.runtime.job import word_of

Place = str | Path
Keys = Mapping[str, object] | Sequence[str]
"""Keys of the recipe with their values, or `KEY=VALUE` as the command line takes them."""
ERROR = "error: "


def run(
    recipe: Place = BUILT_IN,
    *,
    until: str = FLOW[-1].name,
    set: Keys = (),  # noqa: A002  the option's name on the command line
    work: Place = WORK,
) -> dict[str, str]:
    """Run the pipeline on this machine to its end; finished artifacts are reused.

    An interrupt (the notebook's stop button) ends it after it has saved. The same call resumes it.

    Args:
        recipe: A file, or the name of a shipped recipe; left out, the demo on built-in data.
        until: Last stage.
        set: Keys of the recipe, such as `{"pretrain.batch_size": 4}`.
        work: Directory for everything.

    Returns:
        Artifact word, `corpus.web` for one of a source -> URI.

    Raises:
        AnadilError: The run failed. Class and message are those of its exit.
        KeyboardInterrupt: After it has saved.

    Example:
        >>> anadil.run(until="tokenizer", work="demo")["tokenizer"]  # doctest: +SKIP
    """
    options = ["--work", str(work), "--until", until, "--output", "json", *_set_options(set)]
    made: dict[str, str] = json.loads(_output(["run", str(recipe), *options], {}))
    return made


def stage(
    name: str,
    recipe: Place = BUILT_IN,
    *,
    set: Keys = (),  # noqa: A002  the option's name on the command line
    work: Place = WORK,
    source: str = "",
    **inputs: Place | Mapping[str, Place],
) -> str:
    """Run one stage to its end; a finished artifact is reused.

    An interrupt (the notebook's stop button) ends it after it has saved. The same call resumes it.

    Args:
        name: Name of the stage.
        recipe: A file, or the name of a shipped recipe.
        set: Keys of the recipe, such as `{"clean.inputs": ["news.jsonl"]}`.
        work: Directory for the artifact, where the recipe names no `storage.root`.
        source: Source of the recipe that the stage works on.
        inputs: Artifacts that the stage reads, by their words: a URI, or one for each source of the recipe.

    Returns:
        URI of the artifact.

    Raises:
        AnadilError: The stage failed. Class and message are those of its exit.
        KeyboardInterrupt: After it has saved.

    Example:
        >>> anadil.stage("tokenizer", "my.yaml", corpus="anadil-work/corpus/0a1b2c3d4e5f6a7b")  # doctest: +SKIP
    """
    if name not in STAGES:
        raise RecipeError(f"stage {name!r}: not one of {', '.join(STAGES)}{did_you_mean(name, [*STAGES])}")
    if unread := inputs.keys() - {*STAGES[name].words}:
        raise RecipeError(
            f"{name} reads no {min(unread)}; it reads {', '.join(STAGES[name].words) or 'no artifact'}"
        )
    options = _set_options(set)
    if load_recipe(str(recipe), options[1::2]).storage.root is None:
        options += _set_options({"storage.root": os.path.realpath(work)})
    uris = {
        word_of(word, each): str(uri)
        for word, value in inputs.items()
        for each, uri in (value if isinstance(value, Mapping) else {"": value}).items()
    }
    options += [*options_of(uris), *(["--source", source] if source else [])]
    # A stage that outlives its notebook would train on unseen, and the same cell would wait for its lock.
    made = _output([name, "--recipe", str(recipe), *options], {PARENT_VARIABLE: str(os.getpid())})
    return made.strip().rpartition("\n")[2]


def _set_options(keys: Keys) -> list[str]:
    """`--set` for each key; JSON is YAML too, but for escaped surrogate pairs."""
    pairs = (
        [f"{key}={json.dumps(value, default=str, ensure_ascii=False)}" for key, value in keys.items()]
        if isinstance(keys, Mapping)
        else keys
    )
    return [word for pair in pairs for word in ("--set", pair)]


def _output(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command of this program to its end and return what it printed on stdout."""
    lines: list[str] = []
    with (
        # A file, since a pipe that nobody reads meanwhile would stop a process that prints much.
        tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as stdout,
        # A process group of its own: a notebook interrupts the kernel's whole group, and a second signal would end
        # the run before it has saved.
        subprocess.Popen(
            [sys.executable, "-m", "anadil", *arguments], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
            text=True, encoding="utf-8", errors="replace", start_new_session=True, env={**os.environ, **environment},
        ) as process,
    ):  # fmt: skip
        assert process.stderr is not None
        code = None
        while code is None:
            try:
                for line in process.stderr:
                    lines.append(line.rstrip("\n"))
                    sys.stderr.write(line)
                code = process.wait()
            except KeyboardInterrupt:
                os.killpg(process.pid, signal.SIGINT)
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)
                raise
        stdout.seek(0)
        output = stdout.read()
    if code == errors.INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise errors.BY_EXIT_CODE.get(code, AnadilError)(_message(lines) or f"exit code {code}")
    return output


def _message(lines: Sequence[str]) -> str:
    """The text of the first error of a log, with its lines of mistakes, which are indented."""
    text = ""
    for line in lines:
        if text and not line.startswith("  "):
            break
        if text or ERROR in line:
            text += f"\n{line}" if text else line.partition(ERROR)[2]
    return text
