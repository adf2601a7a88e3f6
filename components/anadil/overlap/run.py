"""corpora of all sources -> overlap: documents of one that others hold, which training leaves out of it.

python -m anadil.overlap --recipe mixture.yaml --source en --corpus web=DIR --corpus en=DIR --out DIR

Of documents that are alike in two sources, that of the source which the recipe names first stays; in a retraining, that
which the champion was made with. Held-out documents of every
source, and text of them, are left out of the training part of every other.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from anadil.artifacts import sealed_dir
from anadil.clean.dedup.sorted_documents import Numbers, id_of
from anadil.core.errors import DataError, RecipeError
from anadil.core.format import counted
from anadil.core.json_text import json_sha256, write_json
from anadil.overlap.heldout_runs import (
    Boilerplate,
    HeldoutRuns,
    SearchTask,
    add_counts,
    find_runs,
    holders,
    runs_of,
    write_runs,
)
from anadil.overlap.source_corpora import (
    NONE,
    RUN_COUNTS,
    STATS,
    ChampionList,
    Matches,
    Row,
    SourceCorpus,
    SourceTable,
    champion_list,
    corpora_of,
    find_alike,
    ids_of,
    merged,
    table_of,
)
from anadil.runtime.executor import Executor
from anadil.runtime.executors.engines import executor_of_this_program
from anadil.runtime.job import Figures, Job
from anadil.text.excluded import EXCLUDED, HELDOUT, REASONS
from anadil.text.ngram_overlap import CHARACTERS_OF_STRETCH

log = logging.getLogger(__name__)

RUNS_FOLDER = "runs"
LARGE_SHARE = 0.5
"""Share of a source from which on its loss is no side effect. Chosen by us."""


@dataclass(slots=True)
class Counts:
    """Counts of a source, for its stats file."""

    documents: int
    """Documents to train on, before."""
    runs: str
    """Digest of the runs of held-out text that were looked for."""
    left_out: Counter[str] = field(default_factory=Counter)
    by_source: dict[str, Counter[str]] = field(default_factory=dict)
    """Source that holds them -> by reason."""
    heldout: int = 0
    heldout_alike: int = 0
    """Those that are alike to a held-out one of another source; they stay, since they are no training text."""
    boilerplate: Boilerplate = field(default_factory=Boilerplate)

    @property
    def remaining(self) -> int:
        """Documents that are left."""
        return self.documents - self.left_out.total()

    def as_json(self) -> dict[str, object]:
        """Return everything."""
        return {
            "documents": self.documents,
            "remaining": self.remaining,
            "left_out": self.left_out,
            "by_source": self.by_source,
            "heldout": {"documents": self.heldout, "alike": self.heldout_alike},
            "boilerplate": asdict(self.boilerplate),
            "runs": self.runs,
        }


def run(job: Job, executor: Executor | None = None) -> Figures:
    """Fill `excluded.jsonl` and its counts for the one source of the job's recipe."""
    corpora = corpora_of(job)
    if len(corpora) < 2:
        raise RecipeError("overlap: the recipe names fewer than two sources, so there is nothing to compare")
    current = [corpus.source for corpus in corpora].index(next(iter(job.recipe.sources)))
    folder = job.work / "overlap"
    folder.mkdir(parents=True, exist_ok=True)
    # A killed run leaves drafts, which nobody reads and which would stay for good.
    sealed_dir.remove_drafts(folder)
    # Its kernels, and numba, before processes are copies of this one: each would load them for itself.
    runs_of("bir iki " * CHARACTERS_OF_STRETCH)
    known = champion_list(job.recipe, corpora[current].source, [corpus.source for corpus in corpora])
    with executor or executor_of_this_program(job) as running:
        table = table_of(corpora, current, folder, running)
        runs, owners = _heldout_runs(corpora, current, table, folder)
        search = _search_of(corpora[current], runs, known, folder)
        running.map(find_runs, search.tasks)
    add_counts(search.tasks, search.counts)
    np.save(job.out / RUN_COUNTS, np.minimum(search.counts, np.iinfo(np.uint8).max).astype(np.uint8))
    matches = Matches.create(folder / "matches.npy", table.numbers(current))
    find_alike(table, current, job.recipe.clean.minhash_bands, matches)
    # Both directions of a pair are left out together, and count once.
    directions = next(iter(job.recipe.sources.values())).directions
    counts = Counts(documents=corpora[current].num_train // directions, runs=runs.digest)
    counts.boilerplate.documents = search.boilerplate_documents
    for ids, first_owner in holders(search.tasks, runs, search.counts, counts.boilerplate):
        matches.note(HELDOUT, table.numbers_of(current, ids, corpora[current]), owners[first_owner])
    rows = _rows(corpora, current, table, matches, judges_earlier=known is None)
    job.contents[EXCLUDED] = _write_excluded(
        job.out / EXCLUDED, merged(rows, known.rows if known else ()), counts
    )
    counts.heldout = len(corpora[current].heldout_ids)
    counts.heldout_alike = _num_heldout_alike(table, current, matches)
    write_json(job.out / STATS, counts.as_json())
    job.varying.extend((STATS, RUN_COUNTS))
    job.records.update(excluded=counts.left_out.total())
    _judge(corpora[current], counts)
    return {
        "documents": counts.documents,
        **{reason: counts.left_out[reason] for reason in REASONS},
        **{f"in_{source}": by_reason.total() for source, by_reason in counts.by_source.items()},
        "remaining": counts.remaining,
    }


def _heldout_runs(
    corpora: Sequence[SourceCorpus], current: int, table: SourceTable, folder: Path
) -> tuple[HeldoutRuns, Numbers]:
    """Write the runs of the other sources' held-out documents; return them, and the number of each owner."""
    # Within a corpus `clean` has done it: its held-out documents share no run with its others.
    others = [(place, corpus) for place, corpus in enumerate(corpora) if place != current]
    digests = [corpus.manifest.digest for _, corpus in others]
    # The order of the sources is part of the key: of documents alike the earlier source's stays.
    key = json_sha256(digests)
    documents = [(place, corpus, list(corpus.heldout())) for place, corpus in others]
    texts = (each.text for _, _, heldout in documents for each in heldout)
    place_of_runs = sealed_dir.filled(folder / RUNS_FOLDER, {"key": key}, partial(write_runs, texts))
    numbers = [
        table.numbers_of(place, ids_of(each.id for each in heldout), corpus)
        for place, corpus, heldout in documents
    ]
    return HeldoutRuns(place_of_runs), np.concatenate(numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Files of a corpus in which runs are looked for, and counts of the others."""

    tasks: list[SearchTask]
    counts: Numbers
    boilerplate_documents: int = 0


def _search_of(corpus: SourceCorpus, runs: HeldoutRuns, known: ChampionList | None, folder: Path) -> Search:
    """Return a task for each file, without those in which the champion's run has looked for the same."""
    names = sorted(name for name in corpus.manifest.files if name.startswith("train/"))
    # Its list has the documents of its files.
    is_known = known is not None and known.runs == runs.digest and corpus.num_earlier_files
    files = known.files if known and is_known else frozenset[str]()
    tasks = [
        SearchTask(
            file=corpus.folder / name,
            runs=folder / RUNS_FOLDER,
            folder=folder / f"found-{number:05}",
            key=f"{runs.digest} {corpus.manifest.files[name]['sha256']}",
        )
        for number, name in enumerate(names)
        if name not in files
    ]
    if known and files:
        return Search(
            tasks=tasks,
            counts=known.run_counts.astype(np.uint32),
            boilerplate_documents=known.boilerplate_documents,
        )
    return Search(tasks=tasks, counts=np.zeros(len(runs), dtype=np.uint32))


def _write_excluded(path: Path, rows: Iterator[Row], counts: Counts) -> str:
    """Write the documents that are left out; return the digest of their ids, which is all that training depends on."""
    digest = hashlib.sha256()
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            # The reason and the counterpart may change with another source; encode reads ids alone.
            digest.update(row["id"].encode())
            file.write(json.dumps(row) + "\n")
            counts.left_out[row["reason"]] += 1
            counts.by_source.setdefault(row["of"], Counter())[row["reason"]] += 1
    return digest.hexdigest()


def _rows(
    corpora: Sequence[SourceCorpus],
    current: int,
    table: SourceTable,
    matches: Matches,
    *,
    judges_earlier: bool,
) -> Iterator[Row]:
    numbers, signatures = table.numbers(current), table.signatures
    for documents in signatures.by_id():
        is_own = (documents >= numbers.start) & (documents < numbers.stop)
        training = documents[is_own & ~np.isin(documents, table.heldout)]
        reasons, others = matches.of(training)
        if not judges_earlier:
            # Those of the champion's list stay on it. A new source may have held-out text of others.
            reasons[table.is_earlier(training) & (reasons != HELDOUT)] = NONE
        gone = reasons != NONE
        ids, others_ids = (
            map(id_of, *(signatures.column(name, each).tolist() for name in ("id_high", "id_low")))
            for each in (training[gone], others[gone])
        )
        sources = table.source_of(others[gone]).tolist()
        for name, reason, source, other in zip(ids, reasons[gone].tolist(), sources, others_ids, strict=True):
            yield {"id": name, "reason": REASONS[reason], "of": corpora[source].source, "of_id": other}


def _num_heldout_alike(table: SourceTable, current: int, matches: Matches) -> int:
    numbers = table.numbers(current)
    heldout = table.heldout[(table.heldout >= numbers.start) & (table.heldout < numbers.stop)]
    return int((matches.others[HELDOUT, heldout - matches.first] != NONE).sum())


def _judge(corpus: SourceCorpus, counts: Counts) -> None:
    where = ", ".join(
        f"{by_reason.total():,} in {source}"
        for source, by_reason in sorted(counts.by_source.items(), key=lambda item: -item[1].total())
    )
    if not counts.remaining:
        raise DataError(
            f"sources.{corpus.source}: {corpus.uri}: all of its {counted(counts.documents, 'document')} stand in other "
            f"sources, too ({where}), so nothing is left to train on; name other files in sources.{corpus.source}.inputs, or "
            "remove one of the sources"
        )
    if counts.left_out.total() > LARGE_SHARE * counts.documents:
        log.warning(
            "sources.%s: %s of %s stand in other sources, too (%s) and are left out; sources may be named twice",
            corpus.source, f"{counts.left_out.total():,}", counted(counts.documents, "document"), where,
        )  # fmt: skip
    if counts.heldout_alike:
        log.info(
            "sources.%s: %d of its %s are alike to held-out ones of other sources; they stay, and each is scored with its own",
            corpus.source, counts.heldout_alike, counted(counts.heldout, "held-out document"),
        )  # fmt: skip
