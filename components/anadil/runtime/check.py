"""The record of a check, and two ways to run a list of them: report every result, or refuse at the first failure.

A stage's folder may have a module `check` with `CHECKS`. It is loaded before anything heavy is, and loads nothing heavy.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from anadil.artifacts.storage import BUILT_IN
from anadil.core.errors import AnadilError, PreflightError, RetryableError, message_of
from anadil.core.format import OWN_LINE
from anadil.core.install import extra_with, install
from anadil.core.stage import Stage
from anadil.core.stages import BEHIND_TRAINING, FLOW
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)

DOCTOR, CLUSTER_DOCTOR, RUN, SUBMIT, LAUNCH, RECIPE, COMPILE, PLAN = (
    "doctor", "doctor --cluster", "run", "submit", "launch", "recipe check", "compile", "plan",
)  # fmt: skip
EVERY = (DOCTOR, CLUSTER_DOCTOR, RUN, SUBMIT, LAUNCH)
"""Commands that make a check."""
EVERYWHERE = (*EVERY, RECIPE, COMPILE)
"""Those, and commands that start nothing."""
MARKS = {"passed": "ok     ", "failed": "FAILED ", "skipped": "skipped"}
Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line of the doctor."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    detail: str
    remedy: str = ""  # Advice, if the result passed.

    def as_lines(self) -> Iterator[str]:
        """For people."""
        yield from OWN_LINE.split(f"{MARKS[self.status]}  {self.name}: {self.detail}")
        if self.remedy:
            yield from f"         -> {self.remedy}".split("\n")

    def log(self, level: int = logging.DEBUG) -> None:
        """Log it: as a warning if it asks for attention, else at this level."""
        if self.remedy:
            log.warning("%s: %s; %s", self.name, self.detail, self.remedy)
        else:
            log.log(level if self.status == "passed" else logging.WARNING, "%s: %s", self.name, self.detail)


def passed(name: str, detail: str, remedy: str = "") -> CheckResult:
    """Return a need that is met; the remedy is advice."""
    return CheckResult(name=name, status="passed", detail=detail, remedy=remedy)


def failed(name: str, detail: str, remedy: str) -> CheckResult:
    """Return a need that is not met."""
    return CheckResult(name=name, status="failed", detail=detail, remedy=remedy)


def skipped(name: str, detail: str, remedy: str = "") -> CheckResult:
    """Return a need that was not checked."""
    return CheckResult(name=name, status="skipped", detail=detail, remedy=remedy)


def not_installed(name: str, module: str | None, lacks: str = "not checked") -> CheckResult:
    """Return a need whose check takes a module that is not here, with the extra that brings it."""
    extra = extra_with(module or "")
    return skipped(name, f"{lacks}, because {module} is not installed here", install(extra) if extra else "")


def failed_by(name: str, error: AnadilError, remedy: str = "") -> CheckResult:
    """Return the failure that an error stands for; without a remedy, with the one that ends its text."""
    text = message_of(error).removeprefix(f"{name}: ")
    if remedy:
        return failed(name, text, remedy)
    fault, lines, rest = text.partition("\n")
    if lines:
        return failed(name, fault, rest.strip())
    fault, _, last = text.rpartition("; ")
    return failed(name, fault, last) if fault else failed(name, last, f"correct {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[Subject]):
    """One thing that a run needs."""

    name: str
    function: Callable[[Subject], Iterable[CheckResult]]
    """Yields results; raises the error with which a run is refused."""
    by: tuple[str, ...] = ()  # Commands that make the check.
    needs: tuple[str, ...] = ()
    """Names of earlier checks. If one of them failed, this one is skipped: one cause is reported once."""
    remedy: str = ""  # Remedy of its errors; left out, the end of their text.
    seconds: float | None = None
    """Time limit of a check that asks a server; then an unreadable answer is a failure, not a bug."""
    level: int = logging.DEBUG  # At which `refuse` logs a result that passed.

    def made(self, subject: Subject) -> Iterator[CheckResult]:
        """Yield the results, and skip what needs a package that is not here: the check of packages asks for those of a run."""
        try:
            yield from self.function(subject)
        except ModuleNotFoundError as error:
            yield not_installed(self.name, error.name)

    def results(self, subject: Subject) -> list[CheckResult]:
        """Return every result; an error is a failed one."""
        try:
            return list(self.made(subject))
        except AnadilError as error:
            return [failed_by(self.name, error, self.remedy)]
        except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
            if self.seconds is None:
                raise
            # Here an answer of somebody else's server was read, whatever form it had.
            detail = f"an answer that cannot be read ({error!r})"
            return [failed(self.name, detail, "see whether a proxy answers instead")]


def report(checks: Iterable[Check[Subject]], subject: Subject) -> list[CheckResult]:
    """Return the results of all checks, in order."""
    results: list[CheckResult] = []
    for check in checks:
        if need := _unmet(check, {each.name for each in results if each.status == "failed"}):
            results.append(skipped(check.name, f"needs {need}, which failed"))
        elif check.seconds is None:
            results += check.results(subject)
        else:
            results += in_time(check, subject, check.seconds)
    return results


def in_time(check: Check[Subject], subject: Subject, seconds: float) -> list[CheckResult]:
    """Return the results of one check, or a failure where they do not come in time."""
    answers: queue.Queue[list[CheckResult]] = queue.Queue()
    # A daemon, because a silent name server cannot be interrupted.
    threading.Thread(target=lambda: answers.put(check.results(subject)), daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        remedy = "see whether a firewall or a proxy drops the connection"
        return [failed(check.name, f"no answer in {seconds:.0f} s", remedy)]


def refuse(checks: Iterable[Check[Subject]], subject: Subject, *, dry: bool = False) -> None:
    """Raise the first failure, or log failures as warnings if `dry`; log every other result."""
    unmet: set[str] = set()
    for check in checks:
        if _unmet(check, unmet):
            continue
        try:
            for result in check.made(subject):
                if result.status == "failed":
                    raise PreflightError(f"{result.name}: {result.detail}; {result.remedy}")
                result.log(check.level)
        except AnadilError as error:
            if not dry:
                raise
            log.warning("would be refused: %s", error)
            unmet.add(check.name)


def _unmet(check: Check[Subject], failures: set[str]) -> str:
    return next((need for need in check.needs if need in failures), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """Stages of a recipe, and where they will run."""

    by: str  # Command that asks.
    recipe: Recipe
    stages: Sequence[Stage] = FLOW
    then: Sequence[str] = BEHIND_TRAINING
    """Stages that may follow: the base has to suffice for them, and their memory is checked."""
    here: bool = True
    """The stages will run on this machine; else what cannot be seen from here is no failure."""
    work: Path = Path()
    files: Sequence[str] = ()  # Outside files of a single stage, instead of the recipe's.
    extra: str = "laptop"  # Packages that this machine has to have.
    memory_bytes: int = 0  # Memory that `clean` will have; 0 asks this machine, as does `cpus`.
    cpus: int = 0

    @property
    def reads_here(self) -> bool:
        """Files of this machine have to be there: who checks a recipe may be about to run it here."""
        return self.here or self.by == RECIPE

    @property
    def names(self) -> set[str]:
        """Names of the stages."""
        return {stage.name for stage in self.stages}


def claim_of(place: str, recipe: Recipe) -> str:
    """Return the claim of `cluster.volumes` that a path lies on, where this machine does not mount it."""
    if "://" in place or place.startswith(BUILT_IN):
        return ""
    for volume in recipe.cluster.volumes:
        if volume.holds(place):
            return "" if Path(volume.path).is_dir() else volume.claim
    return ""


def claims_of(places: Iterable[str], recipe: Recipe, *, here: bool) -> dict[str, str]:
    """Place -> its claim, of the places that only pods see; none if the stages will run `here`."""
    return {} if here else {place: claim for place in places if (claim := claim_of(place, recipe))}


def unseen(key: str, hidden: dict[str, str]) -> CheckResult:
    """Return the result of a key whose places lie on claims that this machine does not mount."""
    places = ", ".join(f"{place} (claim {claim})" for place, claim in hidden.items())
    return skipped(key, f"{places} can be seen from pods alone")


def inspect_where_visible(
    key: str, inspect: Callable[[], CheckResult], places: Iterable[str], recipe: Recipe, *, here: bool
) -> CheckResult:
    """Return the result of an inspection of places, or skip what cannot be read from here where that is no mistake."""
    if hidden := claims_of(places, recipe, here=here):
        return unseen(key, hidden)
    try:
        return inspect()
    except ModuleNotFoundError as error:
        return not_installed(key, error.name)
    except (PreflightError, RetryableError) as error:
        if here:
            raise
        return skipped(key, f"not checked, because it cannot be read from here ({error})")


def inspect_named(
    key: str, places: Sequence[str], planned: PlannedRun, inspect: Callable[[], CheckResult]
) -> CheckResult:
    """Return the result of an inspection of places that a recipe names; who only checks it sees no claim."""
    hidden = claims_of(places, planned.recipe, here=planned.here)
    return (
        unseen(key, hidden)
        if hidden
        else inspect_where_visible(key, inspect, places, planned.recipe, here=planned.reads_here)
    )
