"""The steps of a run: its stages in order, those of a source once for each source of the recipe.

A stage that reads artifacts of all sources knows them by words such as `corpus.web`. A step of one source reads that
source's own, as `corpus`, unless it compares the source with the others.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anadil.core.errors import RecipeError
from anadil.core.stage import Input, Stage
from anadil.core.stages import COMPARED, FLOW, PER_SOURCE, STAGES, WRITERS
from anadil.recipe.sections import Recipe
from anadil.runtime.job import is_left_out, kind_of, source_of, sources_of, value_of, word_of

log = logging.getLogger(__name__)

RETRAIN = "retrain"
"""First step of a retraining on a cluster, which writes the recipe of the others."""
NAMED = re.compile(r"([a-z][a-z0-9_]*)=(.+)", re.DOTALL)
"""A source and the URI of its artifact, on a command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A stage of a run, or a stage of one of its sources."""

    stage: Stage
    source: str = ""
    """Empty: of all sources, or the recipe names none."""

    @property
    def name(self) -> str:
        """Name in the DAG, in records and in logs."""
        return f"{self.stage.name}-{self.source}" if self.source else self.stage.name

    @property
    def writes(self) -> str:
        """Word of its artifact for those who read the artifacts of all sources."""
        return word_of(self.stage.writes, self.source)

    @classmethod
    def of(cls, stage: Stage, recipe: Recipe) -> "Step":
        """Return the step that runs a stage by this recipe, which names one source where the step is of one."""
        return cls(stage=stage, source=next(iter(recipe.sources), "") if stage.per_source else "")

    @classmethod
    def named(cls, name: str) -> "Step":
        """Return the step of a name, such as `clean-web`."""
        stage, _, source = name.partition("-")
        return cls(stage=STAGES[stage], source=source if STAGES[stage].per_source else "")

    def reads(self, recipe: Recipe) -> dict[str, str]:
        """Word by which the step knows an artifact -> word of the artifact among those of the run."""
        words = {}
        for each in self.stage.reads:
            word = each.kind
            if (word in COMPARED and len(recipe.sources) < 2) or not self._is_read(each, recipe):
                continue
            # Not each source need have one: the base writes some, and the others have files.
            named = sources_of(WRITERS[word], recipe)
            if self.source and word in PER_SOURCE and not self.stage.compares:
                if self.source in named:
                    words[word] = word_of(word, self.source)
                continue
            if each.of_target and recipe.sources:
                named = recipe.target_sources
            words |= {word_of(word, source): word_of(word, source) for source in named}
        return words

    def _is_read(self, each: Input, recipe: Recipe) -> bool:
        """Return whether the recipe lets the step read an artifact."""
        if each.how == "waits" and is_left_out(WRITERS[each.kind], recipe):
            return False
        either = [other.kind for other in self.stage.reads if other.either]
        made = (kind for kind in either if not is_left_out(WRITERS[kind], recipe))
        if each.either and each.kind != next(made, either[-1]):
            return False
        return not each.only_if or bool(value_of(recipe, each.only_if))

    def reads_in_run(self, recipe: Recipe) -> dict[str, str]:
        """Those of `reads` in a run of all stages, where what pieces are made of is not read beside them."""
        made_of = {each.instead_of for each in self.stage.reads}
        return {word: of_run for word, of_run in self.reads(recipe).items() if kind_of(word) not in made_of}


def flow_of(recipe: Recipe, until: str = "") -> tuple[Step, ...]:
    """Return the steps of a run in order, up to a stage or to the last; see `is_skipped`."""
    stages = FLOW[: FLOW.index(STAGES[until]) + 1] if until else FLOW
    return tuple(
        Step(stage=stage, source=source)
        for stage in stages
        if not is_skipped(stage, recipe, until)
        for source in sources_of(stage, recipe)
    )


def is_skipped(stage: Stage, recipe: Recipe, until: str) -> bool:
    """Return whether a run up to a stage goes without another, or without this one.

    A stage that somebody names as the last one runs even where the recipe leaves it out. The last of all is the default
    of commands: it stands for the whole flow.
    """
    return (stage.name != until or stage is FLOW[-1]) and is_left_out(stage, recipe)


def recipe_of_step(
    stage: Stage, recipe: Recipe, source: str, files: Sequence[str] = ()
) -> tuple[Recipe, str]:
    """Return the recipe of a stage's step, that of the source where it is of one, and the source's name.

    Files of the command line are another text than that of the sources. They need no source, and the recipe of theirs has
    none.
    """
    named = sources_of(stage, recipe)
    if not named or (source in recipe.sources and source not in named):
        raise RecipeError(
            f"{stage.name}: {f'source {source} has no' if source else 'no source has'} `{stage.per_source.key if stage.per_source else ''}`; set it, or run the "
            "recipe without this stage"
        )
    if not stage.per_source or not (recipe.sources or source):
        return recipe, ""
    if files and not source:
        return recipe.model_copy(update={"sources": {}}), ""
    if not source and len(named) > 1:
        raise RecipeError(f"{stage.name}: the recipe has sources; name one with --source: {', '.join(named)}")
    source = source or named[0]
    return recipe.of_source(source), source


def named_inputs(
    stage: Stage, recipe: Recipe, given: Mapping[str, Iterable[str]], source: str = ""
) -> dict[str, str]:
    """Return word -> URI of the artifacts that a command line names, `SOURCE=URI` or a URI alone, by option."""
    step = Step(stage=stage, source=source)
    words = step.reads(recipe)
    inputs: dict[str, str] = {}
    for option, values in given.items():
        # Whoever names the model to begin with need not know whether the recipe merges one.
        either = [each.kind for each in stage.reads if each.either]
        word = next((each for each in either if each in words), option) if option in either else option
        for value in values:
            # A path may hold `=` as well, so only the name of a source before it is one.
            match = NAMED.fullmatch(value)
            named = match is not None and word not in words
            # The step of a source has words without names, and people write its name all the same.
            plain = value.removeprefix(f"{source}=") if source and word in PER_SOURCE else value
            key, uri = (word_of(word, match[1]), match[2]) if match and named else (word, plain)
            if key not in words:
                known = ", ".join(
                    f"{each.partition('.')[2]}=URI" for each in words if each.startswith(f"{word}.")
                )
                raise RecipeError(
                    f"--{word} {value}: the recipe has sources; name one of them, as in {known}"
                    if known
                    else f"--{word} {value}: {step.name} reads none by this recipe; leave it out"
                )
            if key in inputs:
                raise RecipeError(
                    f"--{word} is given twice{f' for source {match[1]}' if match and named else ''}: {value}"
                )
            inputs[key] = uri
    refuse_missing(stage, recipe, inputs, source)
    _warn_of_overlap(stage, recipe, inputs, words)
    return {word: inputs[word] for word in words if word in inputs}


def _warn_of_overlap(stage: Stage, recipe: Recipe, inputs: Mapping[str, str], words: Iterable[str]) -> None:
    """Warn where documents of several sources are used that were not compared."""
    if len(recipe.sources) < 2:
        return
    # A stage that makes its own tokens reads corpora alone. One that only tells of lists and tokens leaves nothing out.
    pieces = {each.kind for each in stage.reads if each.how == "pieces"}
    used = pieces if any(each.instead_of for each in stage.reads) else COMPARED - pieces
    missing = {kind_of(word) for word in words if word not in inputs} & used
    for kind in sorted(missing):
        log.warning(
            "--%s is not given: documents that stand in another source, or hold its held-out text, are not left out; "
            "run %s first",
            kind,
            WRITERS[kind].name,
        )


def refuse_missing(stage: Stage, recipe: Recipe, inputs: Mapping[str, str], source: str = "") -> None:
    """Refuse to start a stage without an artifact that it needs."""
    missing = [
        " ".join(options_of({word: "URI"})) if "." in word else f"--{word}"
        for word in Step(stage=stage, source=source).reads(recipe)
        if word not in inputs and (each := stage.input(kind_of(word))).how != "waits" and not each.optional
        # The stage makes it by itself.
        if word_of(each.instead_of, source_of(word)) not in inputs
    ]
    if missing:
        raise RecipeError(f"{stage.name}: {' '.join(missing)} missing; give the URI of each artifact to read")


def options_of(inputs: Mapping[str, str]) -> list[str]:
    """Return the options of a command line that name artifacts: the inverse of `named_inputs`."""
    options = []
    for key, uri in inputs.items():
        word, _, source = key.partition(".")
        options += [f"--{word}", f"{source}={uri}" if source else uri]
    return options
