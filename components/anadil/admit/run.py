"""corpora, overlap -> admission: new text is compared with the earlier text of its source, or refused.

python -m anadil.admit --recipe derived.yaml --corpus web=DIR --corpus en=DIR --out DIR
"""

import logging
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

from anadil.admit.checks import (
    MAX_FILES,
    Week,
    checks_of,
    earlier_corpora,
    growth_of_sources,
    personal_data_of,
    read_week,
)
from anadil.artifacts.artifact import finished_manifest
from anadil.core.errors import DataError
from anadil.core.format import counted
from anadil.core.json_text import write_json
from anadil.recipe.retrain import Retrain
from anadil.runtime.job import Figures, Job, by_source, word_of
from anadil.text.excluded import EXCLUDED, EXCLUDING, excluded_rows
from anadil.text.language import load_language

log = logging.getLogger(__name__)


def run(job: Job) -> Figures:
    """Fill `admission.json`: each check with its figure, the usual one and the limit."""
    retrain, notes = job.recipe.retrain or Retrain(), []
    new: dict[str, Week] = {}
    earlier: dict[str, list[Week]] = {}
    for source, folder in job.of_sources("corpus").items():
        if not retrain.kept(word_of("corpus", source)):
            (new[source], *earlier[source]), more = _weeks(job, source, folder)
            notes += more
    for note in notes:
        log.warning("%s", note)
    compared = {source: week for source, week in new.items() if earlier[source]}
    checks = [
        each
        for source, week in compared.items()
        for each in checks_of(source, week, earlier[source], retrain.limits)
    ]
    checks += growth_of_sources(compared, earlier, retrain.limits)
    uris = {
        source: job.uris.get(word_of("corpus", source), str(job.of_sources("corpus")[source]))
        for source in new
    }
    # All reasons at once: whoever mends one must not meet the next only after another run of `clean`.
    if failed := [check for check in checks if not check.passed]:
        reasons = "; ".join(
            f"{each.source and f'sources.{each.source}: '}{each.words} (usual {each.usual:.3g}, limit {each.limit:.3g}: "
            f"retrain.limits.{each.name})"
            for each in failed
        )
        places = ", ".join(uris[source] for source in dict.fromkeys(each.source for each in failed))
        raise DataError(
            f"the new text is refused for {counted(len(failed), 'reason')}: {reasons}. Look at rejected/ and stats/ of {places}, "
            "and at single documents with `anadil clean explain`; take the files out of the inputs, or raise a limit"
        )
    documents, dropped = sum(week.documents for week in new.values()), Counter[str | None]()
    for week in new.values():
        dropped.update(week.columns["reason"].tolist())
    if new and not dropped[None]:
        counts = ", ".join(f"{reason} {count:,}" for reason, count in dropped.most_common())
        raise DataError(
            f"nothing is left to train on: of {counted(documents, 'document')} that came, none stays (dropped: {counts}). Look "
            f"at rejected/ of {', '.join(uris.values())}; wait for more text, or see `anadil clean explain`"
        )
    figures = {"documents": documents, "earlier_weeks": max(map(len, earlier.values()), default=0)}
    table = {"admitted": True, **figures, "checks": [asdict(check) for check in checks], "notes": notes}
    write_json(job.out / "admission.json", table)
    return {**figures, "checks": len(checks)}


def _weeks(job: Job, source: str, folder: Path) -> tuple[list[Week], list[str]]:
    """Read the new week of a source and its earlier ones, the newest first, with what cannot be compared."""
    word, recipe = word_of("corpus", source), job.recipe.of_source(source) if source else job.recipe
    manifest = finished_manifest(str(folder), "corpus")
    corpora, notes = earlier_corpora(word, manifest)
    if not corpora:
        notes.append(f"{word}: there is no earlier text to compare with, so its text is admitted unseen")
    elif not recipe.clean.decontaminate:
        notes.append(
            f"{word}: text of tasks, questions and chats is not looked for (clean.decontaminate is false)"
        )
    # Sources are compared as they are now, earlier text as well: both shares count the same thing.
    listed = by_source(EXCLUDING, job.inputs).get(source)
    rows = excluded_rows((listed / EXCLUDED).read_bytes(), listed) if listed else ()
    excluded = {row["id"]: row["reason"] for row in rows}
    weeks = [read_week(str(folder), manifest, len(manifest.files), excluded)]
    weeks += [read_week(*each, MAX_FILES, excluded) for each in corpora]
    # `clean` counts personal data only where it replaces them. Weeks whose text is not read say nothing of it.
    if (
        corpora
        and not recipe.clean.pii
        and job.recipe.retrain
        and job.recipe.retrain.limits.personal_data is not None
    ):
        counts = personal_data_of([(str(folder), manifest), *corpora], load_language(recipe.language).code)
        counts += [(0.0, 0.0)] * (len(weeks) - len(counts))
        weeks = [replace(week, personal_data=count) for week, count in zip(weeks, counts, strict=True)]
    return weeks, notes
