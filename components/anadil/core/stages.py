"""The only list of stages, in order. The folder of each has its record.

The command line, the DAG, the launchers, images and their locks, manifests, CI and docs follow it. It
imports next to nothing, so that `anadil --help` is immediate.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import takewhile
from types import ModuleType

from anadil.core.stage import OTHERS, VIEWS, Brought, ChampionParts, Input, Stage

BUILT_IN = "smoke"
"""Recipe that runs when none is named."""
NAMES = (
    "replay",
    "clean",
    "overlap",
    "admit",
    "tokenizer",
    "trial",
    "encode",
    "distill",
    "pretrain",
    "merge",
    "finetune",
    "tasks",
    "evaluate",
    "report",
    "release",
)
"""A row for each stage: the name of its folder."""


def _reads(stage: Stage, stages: Sequence[Stage]) -> tuple[Input, ...]:
    """The inputs of a stage that another of the table writes, with what stands for them and the lists of what it leaves out."""
    earlier = [*takewhile(lambda each: each is not stage, stages)]
    named = {each.kind: each for each in (*_with_forms(stage, earlier), *_lists(stage, earlier))}
    views, others = named.pop(VIEWS, None), named.pop(OTHERS, None)
    for each in earlier:
        # A view reads one file, and a stage with a step for each source has one in each artifact.
        if views and "view" in each.brings and not each.per_source and each.writes not in stage.words:
            named[each.writes] = replace(views, kind=each.writes)
        elif others and each.writes not in named:
            named[each.writes] = replace(others, kind=each.writes)
    written = [each.writes for each in stages]
    return tuple(
        named[kind] for kind in (written if views or others else named) if kind in named.keys() & written
    )


def _with_forms(stage: Stage, earlier: Sequence[Stage]) -> Iterator[Input]:
    for each in stage.reads:
        forms = [
            replace(each, kind=other.writes, optional=not each.either)
            for other in earlier
            if other.stands_for == each.kind
        ]
        # The first of several is read: the last form.
        yield from (*reversed(forms), each) if each.either else (each, *forms)


def _lists(stage: Stage, earlier: Sequence[Stage]) -> Iterator[Input]:
    """Lists of the documents that were excluded from the corpora that a stage reads without them."""
    for each in stage.reads:
        for other in earlier if each.without_excluded else ():
            if other.per_source and other.per_source.excludes:
                files = (other.per_source.excludes,)
                yield replace(each, kind=other.writes, optional=True, files=files, without_excluded=False)


def _champion(stage: Stage, stages: Sequence[Stage]) -> ChampionParts:
    """Parts of the champion that a stage takes: beside its corpora the lists of what was excluded from them."""
    kinds = stage.champion.artifacts
    lists = (each.writes for each in stages if each.compares and each.reads[0].kind in kinds)
    return replace(stage.champion, artifacts=(*kinds, *lists))


_RECORDS: list[Stage] = [import_module(f"anadil.{name}.stage").STAGE for name in NAMES]
FLOW = tuple(
    replace(each, reads=_reads(each, _RECORDS), champion=_champion(each, _RECORDS)) for each in _RECORDS
)
STAGES = {stage.name: stage for stage in FLOW}


def brought(stage: Stage, part: Brought) -> ModuleType:
    """A module of a stage's folder that a generic room loads; see `Stage.brings`."""
    return import_module(f"anadil.{stage.name}.{part}")


def files_of(each: Input) -> tuple[str, ...]:
    """Beginnings of the names of the files that are read of an input."""
    return (brought(WRITERS[each.kind], "view").FILE,) if each.files == (VIEWS,) else each.files


def forms_of(kind: str) -> tuple[str, ...]:
    """An artifact's word, and that of the artifact which stands for it, where some stage writes one."""
    return (kind, *(stage.writes for stage in FLOW if stage.stands_for == kind))


def last_form(kind: str, names: Container[str], prefix: str = "") -> str:
    """Name, with its prefix, of the last form of an artifact that is there; of the artifact itself where none is."""
    forms = (f"{prefix}{form}" for form in reversed(forms_of(kind)))
    return next((form for form in forms if form in names), f"{prefix}{kind}")


_FIRST = [stage.costly for stage in FLOW].index(True)
BEFORE_TRAINING, BEHIND_TRAINING = (
    tuple(stage.name for stage in stages) for stages in (FLOW[:_FIRST], FLOW[_FIRST + 1 :])
)
"""Names of the stages in front of pre-training, and behind it."""
PER_SOURCE = frozenset(stage.writes for stage in FLOW if stage.per_source)
"""Artifacts of which a recipe with `sources` has one for each."""
WRITERS = {stage.writes: stage for stage in FLOW}
"""Artifact -> the stage that writes it."""
PIECES = next((each.kind for stage in FLOW for each in stage.reads if each.instead_of), "")
"""Artifact that training reads by pieces, or makes by itself; empty where no stage writes it."""
COMPARED = frozenset(stage.writes for stage in FLOW if stage.compares)
"""Artifacts of which a recipe with fewer than two sources has none."""
AWAITED = frozenset(
    stage.name
    for stage in FLOW
    if any(each.kind == stage.writes and each.how == "waits" for reader in FLOW for each in reader.reads)
)
"""Stages that others wait for and read nothing of: they refuse a text, or let it pass."""
LAUNCHABLE = tuple(stage.name for stage in FLOW if stage.training)
"""Stages that can be a job of their own."""
IMAGES = {stage.name: stage.pod.image for stage in FLOW} | {"launch": "tools"}
"""Stage or tool that a pod runs -> the image that holds it: one for each stage, and one for the light tools."""
ENGINE_IMAGES = {"ray": "clean-ray", "job": "clean-ray"}
"""`clean.engine` -> image in place of `clean`: the same with Ray's packages, and with what drives pods."""
ENGINE_ROOMS = ("launch", "plan", "estimate", "model")
"""Folders of the package that it holds besides: what launches pods plans them, and a plan knows models."""
STEP_IMAGES = (*dict.fromkeys(IMAGES.values()), *dict.fromkeys(ENGINE_IMAGES.values()))
"""All that a pod of a run may need."""
LAPTOP = "laptop"
"""Image that holds every stage and the local runner: the whole program for a machine with docker alone."""
ALL_IMAGES = (*STEP_IMAGES, "pipelines", "mlflow", LAPTOP)
"""All that `images/build.sh all` makes."""
TORCH_IMAGES = (*dict.fromkeys(stage.pod.image for stage in FLOW if stage.pod.uses_model), LAPTOP)
"""Images that hold torch."""
SHARED_ROOMS = ("artifacts", "builtin", "core", "recipe", "runtime", "text")
"""Folders of the package that every image holds."""


def rooms_of(image: str) -> tuple[str, ...] | None:
    """Folders of the package that an image holds; None: all of them."""
    if image in ENGINE_IMAGES.values():
        return (*SHARED_ROOMS, *ENGINE_ROOMS, "clean")
    if image not in STAGES or STAGES[image].pod.image != image:
        return None
    rooms = (room for stage in FLOW if stage.pod.image == image for room in (*stage.pod.rooms, stage.name))
    return (*SHARED_ROOMS, *dict.fromkeys(rooms))
