"""corpora, overlap -> admission: new text is compared with the earlier text of its source, or refused.

python -m anadil.admit --recipe derived.yaml --corpus web=DIR --corpus en=DIR --out DIR
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from anadil.admit.checks import Check, checks_of, growth_of_one, growth_of_sources
from anadil.admit.earlier_corpora import all_rows, earlier_corpora, new_names
from anadil.admit.personal_data import personal_data_of
from anadil.admit.week import Week, read_week
from anadil.artifacts.artifact import finished_manifest
from anadil.core.errors import DataError
from anadil.core.format import counted
from anadil.core.json_text import write_json
from anadil.overlap.champion_lists import EXCLUDED
from anadil.recipe.retrain import Retrain, RetrainLimits
from anadil.runtime.job import Figures, Job, by_source, word_of
from anadil.text.language import load_language

log = logging.getLogger(__name__)

ADMISSION = "admission.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceWeek:
    """New text of a source, beside the earlier."""

    source: str
    uri: str
    """Its corpus."""
    new: Week
    earlier: tuple[Week, ...]
    notes: list[str]


def run(job: Job) -> Figures:
    """Fill `admission.json`: each check with its figure, the usual one and the limit."""
    retrain = job.recipe.retrain or Retrain()
    weeks = [
        _week(job, retrain, source, folder)
        for source, folder in job.of_sources("corpus").items()
        if not retrain.kept(word_of("corpus", source))
    ]
    checks = [
        check
        for week in weeks
        if week.earlier
        for check in checks_of(week.source, week.new, week.earlier, retrain.limits)
    ]
    checks += _growth_checks([week for week in weeks if week.earlier], retrain.limits)
    notes = [note for week in weeks for note in week.notes]
    for note in notes:
        log.warning("%s", note)
    documents = sum(week.new.documents for week in weeks)
    # All reasons at once: whoever mends one must not meet the next only after another run of `clean`.
    if failed := [check for check in checks if not check.passed]:
        raise DataError(_refusal(failed, weeks))
    if weeks and not any(week.new.is_kept.any() for week in weeks):
        raise DataError(_nothing_left(weeks))
    earlier_weeks = max((len(week.earlier) for week in weeks), default=0)
    write_json(
        job.out / ADMISSION,
        {
            "admitted": True,
            "documents": documents,
            "earlier_weeks": earlier_weeks,
            "checks": [asdict(check) for check in checks],
            "notes": notes,
        },
    )
    return {"documents": documents, "earlier_weeks": earlier_weeks, "checks": len(checks)}


def _growth_checks(weeks: Sequence[SourceWeek], limits: RetrainLimits) -> Iterator[Check]:
    """Yield the checks of the size of each source that has earlier text."""
    # The first corpus holds years of text, where there are later ones.
    earlier = {week.source: week.earlier[:-1] or week.earlier for week in weeks}
    usual = {source: float(np.median([each.documents for each in them])) for source, them in earlier.items()}
    documents = {week.source: week.new.documents for week in weeks}
    if len(weeks) > 1:
        yield from growth_of_sources(documents, usual, limits)
    elif weeks and len(weeks[0].earlier) > 1:
        source, new, them = weeks[0].source, weeks[0].new, earlier[weeks[0].source]
        per_file = new.per_file / max(1.0, float(np.median([each.per_file for each in them])))
        yield from growth_of_one(source, documents[source], usual[source], per_file, limits)


def _week(job: Job, retrain: Retrain, source: str, folder: Path) -> SourceWeek:
    word = word_of("corpus", source)
    manifest = finished_manifest(str(folder), "corpus")
    corpora, notes = earlier_corpora(word, manifest, retrain)
    if not corpora:
        notes = [*notes, f"{word}: there is no earlier text to compare with, so its text is admitted unseen"]
    # Sources are compared as they are now, earlier text as well: both shares count the same thing.
    excluded = _excluded(by_source("overlap", job.inputs).get(source))
    new = read_week(folder, all_rows(manifest), new_names(manifest, corpora), excluded)
    earlier = [read_week(each.folder, each.row_files, excluded=excluded) for each in corpora]
    uri = job.uris.get(word, str(folder))
    recipe = job.recipe.of_source(source) if source else job.recipe
    if corpora and not recipe.clean.decontaminate:
        notes.append(
            f"{word}: text of tasks, questions and chats is not looked for (clean.decontaminate is false)"
        )
    if corpora and not recipe.clean.pii and retrain.limits.personal_data is not None:
        code = load_language(recipe.language).code
        texts = personal_data_of([(uri, manifest), *((each.uri, each.manifest) for each in corpora)], code)
        weeks = [
            replace(week, personal_data=count) for week, count in zip((new, *earlier), texts, strict=False)
        ]
        # Weeks whose text is not read say nothing of it.
        rest = [replace(week, personal_data=(0.0, 0.0)) for week in earlier[len(texts) - 1 :]]
        new, *earlier = (*weeks, *rest)
    return SourceWeek(source=source, uri=uri, new=new, earlier=tuple(earlier), notes=notes)


def _excluded(folder: Path | None) -> dict[str, str]:
    """Return id -> reason of the documents that `overlap` leaves out; none where one source is alone."""
    if folder is None:
        return {}
    lines = (folder / EXCLUDED).read_text(encoding="utf-8").splitlines()
    return {row["id"]: row["reason"] for row in map(json.loads, lines)}


def _refusal(failed: Sequence[Check], weeks: Sequence[SourceWeek]) -> str:
    reasons = "; ".join(
        f"{each.source and f'sources.{each.source}: '}{each.words} (usual {each.usual:.3g}, limit {each.limit:.3g}: "
        f"retrain.limits.{each.name})"
        for each in failed
    )
    names = {each.source for each in failed}
    places = ", ".join(week.uri for week in weeks if week.source in names)
    return (
        f"the new text is refused for {counted(len(failed), 'reason')}: {reasons}. Look at rejected/ and stats/ of {places}, "
        "and at single documents with `anadil clean explain`; take the files out of the inputs, or raise a limit"
    )


def _nothing_left(weeks: Sequence[SourceWeek]) -> str:
    counts = Counter(
        str(reason) for week in weeks for reason in week.new.reasons.tolist() if reason is not None
    )
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common())
    total = counted(sum(week.new.documents for week in weeks), "document")
    places = ", ".join(week.uri for week in weeks)
    return (
        f"nothing is left to train on: of {total} that came, none stays (dropped: {dropped}). Look at rejected/ of {places}; "
        "wait for more text, or see `anadil clean explain`"
    )
