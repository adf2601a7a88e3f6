"""model, scores -> release: the registry's aliases after a retraining.

The gate's verdict stands in the scores. The candidate that it released becomes champion where it beats the champion, as
`anadil promote` decides, else challenger. Where it released none, the champion stays.

A run that was killed at any moment is repeated with the same end. The registry is asked before each write, and the same
bytes stay one version. People are told once more at most.
"""

import getpass
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from anadil import __version__
from anadil.artifacts import artifact, storage
from anadil.artifacts.uri import join
from anadil.core.candidates import BY_NAME
from anadil.core.errors import IntegrityError, PreflightError
from anadil.core.json_text import read_json
from anadil.page.values import Json, table_of
from anadil.recipe.retrain import Champion
from anadil.release.registry.client import open_registry, registry_address
from anadil.release.registry.promotion import Promotable, check_promotable, loses_answers, now, promote
from anadil.report.verdict import before, check_words, checks_of, outcome_words, released_name
from anadil.runtime.alerts import Event, notify
from anadil.runtime.compared_champion import ALIAS
from anadil.runtime.job import Figures, Job
from anadil.runtime.tracking_spool import PIPELINE_RUN

FILE = "release.json"
Outcome = Literal["champion", "challenger", "refused"]
log = logging.getLogger(__name__)
TOLD = "told"
"""File in the work directory: people were told of this outcome by a run that was killed."""
TO_CHAMPION = "_to_champion"
"""Part of the names of checks that compare with the champion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRecord:
    """Result of the release step."""

    outcome: Outcome
    """`refused`: the gate let no candidate through, and the champion stays."""
    alias: str = ""
    """Alias that the version got; empty where none was moved."""
    name: str
    """Registered model."""
    version: str = ""
    """Its version that the candidate is; empty for a refused one."""
    previous: str
    """Version that was the champion when the retraining began."""
    candidate: str = ""
    """Name of the candidate in the scores."""
    uri: str = ""
    digest: str = ""
    reasons: tuple[str, ...]
    """Sentences, the first of which says the outcome."""
    checks: tuple[dict[str, Any], ...]
    """The gate's checks of the candidate, of all candidates where none was released."""
    by: dict[str, str]
    """Who: `user`, `run`, `recipe` (SHA-256 of the resolved recipe) and `program`."""
    at: str
    """Time in UTC, ISO 8601."""

    def text(self) -> str:
        """The content of the file."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"


def read_release(uri: str) -> ReleaseRecord:
    """The record in an artifact `release`."""
    artifact.finished_manifest(uri, "release")
    place = join(uri, FILE)
    try:
        return TypeAdapter(ReleaseRecord).validate_json(storage.store(place).read(place))
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise IntegrityError(
            f"{place}: no record of a release ({why}); remove {uri}, and run the stage again"
        ) from None


def run(job: Job) -> Figures:
    """Move the alias, tell people, and write `release.json`."""
    scores = table_of(read_json(job.inputs["scores"] / "scores.json"))
    champion = job.recipe.retrain.champion if job.recipe.retrain else None
    candidate = released_name(scores)
    # A plain run of such a recipe has nothing to stand against, and must not move the model that people serve.
    if champion is None or not candidate:
        record = _refused(job, scores, champion)
    else:
        record = _released(job, scores, candidate, champion)
    (job.out / FILE).write_text(record.text(), encoding="utf-8")
    # Who and when are of this run, and nothing is made of them.
    job.varying.append(FILE)
    for reason in record.reasons:
        log.info("%s", reason)
    # After the aliases were moved: nobody may hear of a release that did not happen.
    if champion:
        _tell(job, record)
    tags = {"anadil.outcome": record.outcome, "anadil.released_version": record.version}
    job.tracker.texts("run tags", {name: text for name, text in tags.items() if text})
    return {"outcome": record.outcome, **({"version": record.version} if record.version else {})}


def _refused(job: Job, scores: Json, champion: Champion | None) -> ReleaseRecord:
    if champion is None:
        name, reasons = f"anadil-{job.recipe.language_code}", [
            "No alias was moved, because retrain.champion is not set. Run anadil retrain, or promote by hand."
        ]  # fmt: skip
    else:
        name = champion.name
        failed = [each for each in checks_of(scores) if each.get("enforced", True) and not each.get("passed")]
        reasons = [
            f"The gate released none, so version {champion.version} of {name} stays champion.",
            *(_sentence(each, "", scores) for each in failed),
        ]
    return ReleaseRecord(
        outcome="refused", name=name, previous=champion.version if champion else "", reasons=tuple(reasons),
        checks=tuple(checks_of(scores)), by=_by(job), at=now(),
    )  # fmt: skip


def _released(job: Job, scores: Json, candidate: str, champion: Champion) -> ReleaseRecord:
    """Move the alias to the candidate that the gate released."""
    uri = job.uris[BY_NAME[candidate].kind]
    # Every byte is compared first, as for a promotion by hand.
    model = check_promotable(job.uris["scores"], uri)
    tracking = registry_address(job.recipe, uri)
    if tracking is None:
        raise PreflightError(
            f"{uri}: passed its gate, and no registry is named that could release it; set tracking.uri or "
            "MLFLOW_TRACKING_URI, and run the same command"
        )
    done = promote(
        open_registry(tracking), champion.name, model, None, job.recipe.tracking.experiment,
        began_with=champion,
    )  # fmt: skip
    return ReleaseRecord(
        outcome="champion" if done.alias == ALIAS else "challenger", alias=done.alias, name=done.name,
        version=done.version, previous=champion.version, candidate=candidate, uri=model.uri,
        digest=model.manifest.digest,
        reasons=tuple(_reasons(done.version, done.alias, done.rolled_back, model, champion)),
        checks=tuple(checks_of(scores, candidate)), by=_by(job), at=now(),
    )  # fmt: skip


def _reasons(
    version: str, alias: str, rolled_back: str, model: Promotable, champion: Champion
) -> Iterator[str]:
    """Yield why a version got its alias, and its comparisons with the champion."""
    what, other = (
        f"Version {version} of {champion.name}, the {model.candidate} model",
        f"version {champion.version}",
    )
    if model.manifest.digest == champion.digest:
        yield f"{what}, holds the same bytes as {other}, so nothing changes."
    elif alias == ALIAS:
        yield f"{what}, is champion: it beats {other} with 95 % confidence."
    elif rolled_back:
        yield (
            f"{what}, is challenger: it was rolled back at {rolled_back}. Only anadil promote --as champion makes it "
            "champion again."
        )
    elif loses_answers(champion.uri, model):
        yield f"{what}, is challenger: {other} answers, and this one only continues text."
    elif not model.was_compared_with(champion.digest):
        yield f"{what}, is challenger: the scores do not compare it with {other}, which stays champion."
    else:
        yield f"{what}, is challenger: nothing shows with 95 % confidence that it beats {other}, which stays champion."
    for check in model.checks:
        if TO_CHAMPION in str(check.get("name")):
            yield _sentence(check, model.candidate, model.table)


def _sentence(check: Json, candidate: str, scores: Json) -> str:
    words = check_words(check, candidate, before(scores))
    weight = "" if check.get("enforced", True) else ", not decisive"
    return f"{words[0].upper()}{words[1:]} {outcome_words(check)}{weight}."


def _by(job: Job) -> dict[str, str]:
    """Who releases: the user, the run, its recipe, the program."""
    user = ""
    with suppress(OSError, KeyError):  # a container's user may have a number and no name
        user = getpass.getuser()
    recipe = hashlib.sha256(job.recipe.model_dump_json().encode(errors="replace")).hexdigest()
    run = os.environ.get(PIPELINE_RUN, "")
    return {"user": user, "run": run, "recipe": recipe, "program": __version__}


def _tell(job: Job, record: ReleaseRecord) -> None:
    """Send the outcome with its reasons, once for each work directory."""
    # A pod that is lost takes its work directory along, and the next one tells once more.
    marker = job.work / TOLD
    said = f"{record.outcome} {record.name} {record.version}"
    if marker.is_file() and marker.read_text(encoding="utf-8") == said:
        return
    page = job.uris.get("report")
    look = f"its scores: {job.uris['scores']}{f'; its report: {page}/report.html' if page else ''}"
    back = f"; anadil rollback --name {record.name} goes back" if record.outcome == "champion" else ""
    notify(
        Event(
            kind="refused" if record.outcome == "refused" else "released", run=record.by["run"] or record.name,
            stage="release", message="\n".join(record.reasons), artifact=record.uri, resume=f"{look}{back}",
        )
    )  # fmt: skip
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text(said, encoding="utf-8")
