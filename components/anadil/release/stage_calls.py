"""Stages as functions, `anadil.clean(...)` and the like, and `anadil.run`: each in another process, as its command runs."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, Unpack, get_args, get_type_hints

from anadil.core.errors import DataError
from anadil.core.stages import FLOW
from anadil.recipe.sections import Recipe
from anadil.release.artifact_object import Artifact
from anadil.release.child_process import Say, recipe_file, run_command
from anadil.release.runs import WORK, Run, list_runs
from anadil.release.stage_keys import (
    CleanOptions,
    EvaluateOptions,
    FinetuneOptions,
    PretrainOptions,
    TokenizerOptions,
)
from anadil.release.stage_process import Place, Places, run_stage

Files = str | Path | Sequence[str | Path]
F = TypeVar("F", bound=Callable[..., Artifact])


def _with_keys(function: F) -> F:
    """List each key in the signature, as notebooks and `help` show it."""
    # `**options` alone would show no key, and editors would complete none.
    plain = inspect.signature(function)
    (options,) = get_args(get_type_hints(function)["options"])
    parameters = [each for each in plain.parameters.values() if each.kind is not each.VAR_KEYWORD]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=hint)
        for name, hint in get_type_hints(options).items()
    ]
    function.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
    return function


@_with_keys
def clean(
    inputs: Files = (), *, language: str | None = None, source: str = "", **options: Unpack[CleanOptions]
) -> Artifact:
    """Clean raw text, pages and WARC into a corpus; see `anadil clean`.

    Args:
        inputs: Files, globs, `s3://` or `hf://` URIs; left out, those of the recipe.
        language: Id of the language, or the file of a pack.
        source: Source of the recipe that is cleaned, where it has some.
        options: `recipe`, `work`, `overrides`, `say`, and keys of the section `clean`, such as `pii=True`.

    Raises:
        AnadilError: As the command; a mistake in a key is a `RecipeError`.

    Example:
        >>> anadil.clean("news/*.jsonl", language="az").figures["kept"]  # doctest: +SKIP
    """
    more = {"clean.inputs": _listed(inputs), "language": language}
    return run_stage("clean", {}, options, more, source=source)


@_with_keys
def train_tokenizer(
    corpus: Places, *, base: str | None = None, **options: Unpack[TokenizerOptions]
) -> Artifact:
    """Train, extend and compare tokenizers on a corpus; see `anadil tokenizer`.

    Args:
        corpus: A corpus, or one for each source of the recipe.
        base: Base model: a directory, a name of the hub, or `tiny`.
        options: `recipe`, `work`, `overrides`, `say`, and keys of the section `tokenizer`, such as `choice="extend"`.

    Raises:
        AnadilError: As the command; a mistake in a key is a `RecipeError`.

    Example:
        >>> anadil.train_tokenizer(corpus, vocab_sizes=[16_000]).figures["choice"]  # doctest: +SKIP
    """
    return run_stage("tokenizer", {"corpus": corpus}, options, {"base.model": base})


@_with_keys
def pretrain(
    tokenizer: Place,
    corpus: Places | None = None,
    *,
    tokens: Places | None = None,
    trial: Place | None = None,
    base: str | None = None,
    **options: Unpack[PretrainOptions],
) -> Artifact:
    """Continue the base model's pre-training on a corpus; see `anadil pretrain`.

    An interrupt (the notebook's stop button) ends it after it has saved; the same call resumes it.

    Args:
        tokenizer: A tokenizer.
        corpus: A corpus, or one for each source of the recipe.
        tokens: Tokens of the corpus, which `anadil encode` makes, in its place.
        trial: The trial that chose the tokenizer.
        base: Base model: a directory, a name of the hub, or `tiny`.
        options: `recipe`, `work`, `overrides`, `say`, and keys of the section `pretrain`, such as `batch_size=64`.

    Raises:
        AnadilError: As the command; a mistake in a key is a `RecipeError`.
        KeyboardInterrupt: After it has saved.

    Example:
        >>> anadil.pretrain(tokenizer, corpus, batch_size=64).path  # doctest: +SKIP
    """
    inputs = {"corpus": corpus, "tokens": tokens, "trial": trial, "tokenizer": tokenizer}
    return run_stage("pretrain", inputs, options, {"base.model": base})


@_with_keys
def finetune(model: Place, chats: Files = (), **options: Unpack[FinetuneOptions]) -> Artifact:
    """Teach a model to answer; see `anadil finetune`.

    An interrupt (the notebook's stop button) ends it after it has saved; the same call resumes it.

    Args:
        model: A model, or a merged one.
        chats: Files or data sets of chats; left out, those of the recipe.
        options: `recipe`, `work`, `overrides`, `say`, and keys of the section `finetune`, such as `epochs=2`.

    Raises:
        AnadilError: As the command; a mistake in a key is a `RecipeError`.
        KeyboardInterrupt: After it has saved.

    Example:
        >>> anadil.finetune(model, "chats.jsonl", epochs=2)  # doctest: +SKIP
    """
    return run_stage("finetune", {"model": model}, options, {"finetune.inputs": _listed(chats)})


@_with_keys
def evaluate(
    corpus: Places,
    model: Place,
    adapter: Place | None = None,
    *,
    merged: Place | None = None,
    tasks: Place | None = None,
    **options: Unpack[EvaluateOptions],
) -> Artifact:
    """Score base, adapted and finetuned model; see `anadil evaluate`.

    Args:
        corpus: The corpus with the held-out text, or one for each source of the recipe.
        model: The adapted model.
        adapter: Result of `finetune` on it.
        merged: Result of `anadil merge` on it.
        tasks: Result of `anadil tasks`.
        options: `recipe`, `work`, `overrides`, `say`, and keys of the section `evaluate`, such as `max_questions=50`.

    Raises:
        AnadilError: As the command; a mistake in a key is a `RecipeError`.

    Example:
        >>> anadil.evaluate(corpus, model, adapter).figures["released"]  # doctest: +SKIP
    """
    inputs = {"corpus": corpus, "model": model, "merged": merged, "adapter": adapter, "tasks": tasks}
    return run_stage("evaluate", inputs, options, {})


def _listed(files: Files) -> list[str] | None:
    listed = [files] if isinstance(files, str | Path) else list(files)
    return [str(each) for each in listed] or None


def run(
    recipe: Recipe | str = "smoke",
    *,
    work: str | Path = WORK,
    overrides: Sequence[str] = (),
    until: str = FLOW[-1].name,
    say: Say | None = None,
) -> Run:
    """Run the pipeline on this machine and wait for its end; existing artifacts are reused.

    An interrupt (the notebook's stop button) ends it after it has saved; the same call resumes it.

    Args:
        recipe: A recipe, the name of a shipped one, or a file; left out, the demo on built-in data.
        work: Directory for everything.
        overrides: Keys of the recipe as `--set` takes them, such as `pretrain.batch_size=4`.
        until: Last stage.
        say: Gets each line of its log; left out, a notebook shows how far it is, and elsewhere lines are printed.

    Returns:
        The run as `list_runs` shows it.

    Raises:
        AnadilError: The run failed; class and message are those of its exit.
        KeyboardInterrupt: After it has saved.

    Example:
        >>> anadil.run(until="tokenizer", work="demo").artifacts["tokenizer"]  # doctest: +SKIP
    """
    with recipe_file(recipe) as name:
        arguments = ["run", name, "--work", str(work), "--until", until]
        arguments += [word for each in overrides for word in ("--set", each)]
        ended = run_command(arguments, say, {})
    result = next((each for each in list_runs(work, limit=10) if each.id.endswith(f"-{ended.number}")), None)
    if result is None:
        raise DataError(f"{work}: the run left no record there; check whether the disk is full")
    return result
