"""The corpora of all sources: held-out documents, and the indexes of all as one table of signatures.

Documents are compared a kind of key at a time, in its order, two directly: no chain joins what is not alike. In a
retraining an earlier document stays as it was, so that its tokens do: of documents alike the earlier one stays.
"""

import heapq
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Self

import numpy as np

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest, finished_manifest, remedy_of
from anadil.artifacts.uri import join
from anadil.clean.dedup.find_duplicates import CHUNK
from anadil.clean.dedup.sorted_documents import EXACT, MASK, Numbers, Signatures, id_of
from anadil.clean.shards.since import INDEX, INDEX_META, key_settings, other_settings, write_columns
from anadil.core.errors import DataError, IntegrityError
from anadil.core.json_text import read_json
from anadil.recipe.clean import Clean
from anadil.recipe.sections import Recipe
from anadil.runtime.executor import Executor, FolderTask
from anadil.runtime.job import Job
from anadil.text.corpus import Document, read_documents
from anadil.text.excluded import DUPLICATE, EXCLUDED, HELDOUT, NEAR_DUPLICATE, REASONS, excluded_rows

ID_KIND = [("high", np.uint64), ("low", np.uint64)]
"""Halves of an id."""
STATS, RUN_COUNTS = "overlap.json", "run_counts.npy"
"""Counts of the documents that are left out, and how many documents hold each run of held-out text, up to 255."""
Row = dict[str, str]
"""Document that is left out: `id`, `reason`, and `of` and `of_id` of the one that it gives way to."""
NONE = -1


@dataclass(frozen=True, kw_only=True)
class SourceCorpus:
    """The corpus of a source, local."""

    source: str
    uri: str
    folder: Path
    manifest: Manifest
    num_earlier_files: int = 0
    """Files of its index that are the champion's, in a retraining."""

    @cached_property
    def heldout_ids(self) -> Numbers:
        """Ids of its held-out documents, sorted."""
        # Both directions of a pair have one id.
        return np.unique(ids_of(document.id for document in self.heldout()))

    def heldout(self) -> Iterator[Document]:
        """Read its held-out documents."""
        return read_documents(self.folder, "heldout")

    @property
    def num_train(self) -> int:
        """Count its documents to train on."""
        return self.manifest.records.get("train", 0)

    @property
    def index_files(self) -> list[str]:
        """Files of its index, in order."""
        return _index_files(self.manifest)


def corpora_of(job: Job) -> list[SourceCorpus]:
    """Open the corpora of all sources, in the recipe's order."""
    corpora = []
    for source, folder in job.of_sources("corpus").items():
        uri = job.uris.get(f"corpus.{source}", str(folder))
        manifest = finished_manifest(str(folder), "corpus")
        num_earlier = num_earlier_files(job.recipe, source, manifest, _index_files(manifest))
        corpus = SourceCorpus(
            source=source, uri=uri, folder=folder, manifest=manifest, num_earlier_files=num_earlier
        )
        _check_index(corpus, job.recipe.clean)
        corpora.append(corpus)
    return corpora


def _index_files(manifest: Manifest) -> list[str]:
    return sorted(name for name in manifest.files if name.startswith(f"{INDEX}/part-"))


def _check_index(corpus: SourceCorpus, clean: Clean) -> None:
    again = f"clean source {corpus.source} again with this recipe and version"
    if INDEX_META not in corpus.manifest.files:
        raise DataError(
            f"{corpus.uri}: this corpus has no index to compare it with other sources by; {again}"
        )
    theirs = read_json(corpus.folder / INDEX_META)
    # The language is no matter: keys fold the letters of all languages alike.
    if differing := other_settings(theirs, key_settings(clean)):
        raise DataError(
            f"{corpus.uri}: its index was made with other settings ({differing}), so documents that are alike "
            f"would not be found; {again}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsTask(FolderTask):
    """Everything that a process needs to sort the keys of one file of an index."""

    file: Path
    ids: Path | None
    """File of the ids that are taken; None: all."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"keys of {self.file.parent.parent.name}/{self.file.name}"


def sort_keys(task: ColumnsTask) -> None:
    """Write the keys of a file of an index in their own order, unless it is done."""
    if task.is_done():
        return
    with task.draft() as draft:
        table = np.load(task.file)
        if task.ids:
            rows = places_of(table["id_high"], table["id_low"], np.load(task.ids))
            table = table[np.sort(rows[rows >= 0])]
        write_columns(table, draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """Signatures of the documents of all sources: numbers follow the order of sources."""

    signatures: Signatures
    starts: Sequence[int]
    """Number of each source's first document, and of all."""
    shards: Sequence[range]
    """Shards of each source among those of `signatures`."""
    earlier: Sequence[range]
    """Numbers of each source's documents that the champion of a retraining was made with."""
    heldout: Numbers
    """Numbers of all held-out documents, sorted."""

    def is_earlier(self, documents: Numbers) -> Numbers:
        """Return True for each document that the champion was made with."""
        masks = [(documents >= each.start) & (documents < each.stop) for each in self.earlier]
        mask: Numbers = np.logical_or.reduce(masks)
        return mask

    def numbers(self, source: int) -> range:
        """Return the numbers of a source's documents."""
        return range(self.starts[source], self.starts[source + 1])

    def numbers_of(self, source: int, ids: Numbers, corpus: SourceCorpus) -> Numbers:
        """Return the numbers of documents of a source by their ids."""
        numbers = np.full(len(ids), -1, dtype=np.int64)
        for place in self.shards[source]:
            shard = self.signatures.shards[place]
            rows = places_of(shard.column("id_high"), shard.column("id_low"), ids)
            numbers = np.where(rows >= 0, rows + self.signatures.starts[place], numbers)
        if (numbers < 0).any():
            missing = ids[numbers < 0][0]
            raise IntegrityError(
                f"{corpus.uri}: its index lacks document {id_of(missing['high'], missing['low'])} of the corpus; "
                f"{remedy_of(corpus.uri)}"
            )
        return numbers

    def source_of(self, documents: Numbers) -> Numbers:
        """Return the place of the source of each document."""
        return np.searchsorted(self.starts, documents, side="right") - 1


def table_of(corpora: Sequence[SourceCorpus], current: int, folder: Path, executor: Executor) -> SourceTable:
    """Sort the keys of a source, of those before it, and of earlier or held-out documents of those behind it."""
    tasks, ends = [], [0]
    for place, corpus in enumerate(corpora):
        ids = folder / f"{corpus.source}-heldout.npy" if place > current else None
        if ids:
            np.save(ids, corpus.heldout_ids)
        for number, name in enumerate(corpus.index_files):
            only = None if number < corpus.num_earlier_files else ids
            key = f"{corpus.manifest.files[name]['sha256']} {corpus.manifest.digest if only else ''}"
            target = folder / f"keys-{place:05}-{number:05}"
            tasks.append(ColumnsTask(file=corpus.folder / name, ids=only, folder=target, key=key))
        ends.append(len(tasks))
    executor.map(sort_keys, tasks)
    signatures = Signatures([task.folder for task in tasks])
    shards = [range(first, end) for first, end in itertools.pairwise(ends)]
    starts = signatures.starts.tolist()
    table = SourceTable(
        signatures=signatures,
        starts=[starts[end] for end in ends],
        shards=shards,
        earlier=[
            range(starts[each.start], starts[each.start + corpus.num_earlier_files])
            for each, corpus in zip(shards, corpora, strict=True)
        ],
        heldout=np.empty(0, np.int64),
    )
    heldout = [table.numbers_of(place, each.heldout_ids, each) for place, each in enumerate(corpora)]
    return replace(table, heldout=np.sort(np.concatenate(heldout)))


def ids_of(texts: Iterable[str]) -> Numbers:
    """Return ids, given as hexadecimal digits, as pairs of halves."""
    numbers = [int(each, 16) for each in texts]
    return np.array([(number >> 64, number & MASK) for number in numbers], dtype=ID_KIND)


def places_of(high: Numbers, low: Numbers, ids: Numbers) -> Numbers:
    """Return the place of each of some ids among those with sorted halves; -1: it is not among them."""
    places = np.full(len(ids), -1, dtype=np.int64)
    if len(high):
        first = np.searchsorted(high, ids["high"])
        # Two ids hardly agree in 64 bits, and three never do: the one behind is asked as well.
        for candidate in (first, first + 1):
            inside = np.minimum(candidate, len(high) - 1)
            same = (high[inside] == ids["high"]) & (low[inside] == ids["low"])
            places[same] = inside[same]
    return places


def num_earlier_files(recipe: Recipe, source: str, ours: Manifest, names: list[str]) -> int:
    """Count the files of a corpus's index that the champion's corpus of the source has, too: the first ones."""
    if not (uri := _place(recipe, f"corpus.{source}")):
        return 0
    theirs = artifact.finished_manifest(uri, "corpus")
    same = [theirs.files.get(name) == ours.files[name] for name in names]
    return len(list(itertools.takewhile(bool, same)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionList:
    """Artifact `overlap` of a source that the champion was made with."""

    rows: list[Row]
    files: frozenset[str]
    """Files of the training part that it was made of."""
    runs: str
    """Digest of the runs of held-out text that were looked for."""
    run_counts: Numbers
    """Documents that hold each of them."""
    boilerplate_documents: int
    """Documents that hold such runs only as too many hold."""


def champion_list(recipe: Recipe, source: str, sources: Iterable[str]) -> ChampionList | None:
    """Read the champion's list for a source; None: it has none, and earlier documents are judged anew."""
    uri = _place(recipe, f"overlap.{source}")
    manifest = artifact.read_manifest(uri) if uri else None
    if manifest is None:
        return None
    store = storage.store(uri)
    rows = excluded_rows(store.read(join(uri, EXCLUDED)), uri)
    stats = json.loads(store.read(join(uri, STATS)))
    corpus = artifact.finished_manifest(_place(recipe, f"corpus.{source}"), "corpus")
    return ChampionList(
        # A document whose counterpart is gone with its source is training text again.
        rows=[row for row in rows if row["of"] in sources],
        files=frozenset(name for name in corpus.files if name.startswith("train/")),
        runs=stats["runs"],
        run_counts=np.load(io.BytesIO(store.read(join(uri, RUN_COUNTS)))),
        boilerplate_documents=stats["boilerplate"]["documents"],
    )


def merged(computed: Iterable[Row], stored: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of both by id; of two for a document that of the champion."""
    rows = heapq.merge(stored, computed, key=itemgetter("id"))
    return (next(same) for _, same in itertools.groupby(rows, key=itemgetter("id")))


def _place(recipe: Recipe, word: str) -> str:
    champion = recipe.retrain.champion if recipe.retrain else None
    return champion.artifacts.get(word, "") if champion else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """For each document of a source and each reason, the document that it gives way to, or `NONE`; on the disk."""

    first: int
    """Number of the source's first document."""
    others: Numbers
    """Shape (reasons, documents)."""

    @classmethod
    def create(cls, path: Path, numbers: range) -> Self:
        """Begin without a match."""
        others = np.lib.format.open_memmap(path, "w+", np.int64, (len(REASONS), len(numbers)))
        for start in range(0, len(numbers), CHUNK):
            others[:, start : start + CHUNK] = NONE
        return cls(first=numbers.start, others=others)

    def note(self, reason: int, documents: Numbers, others: Numbers) -> None:
        """Note a match of each of some documents; the smallest number counts."""
        rows = documents - self.first
        before = self.others[reason, rows]
        self.others[reason, rows] = np.where(before == NONE, others, np.minimum(before, others))

    def of(self, documents: Numbers) -> tuple[Numbers, Numbers]:
        """Return the reason of each document, or `NONE`, and the document that it gives way to."""
        rows = documents - self.first
        reasons = np.full(len(rows), NONE)
        others = np.full(len(rows), NONE)
        for reason in reversed(range(len(REASONS))):
            column = self.others[reason, rows]
            reasons, others = (
                np.where(column != NONE, reason, reasons),
                np.where(column != NONE, column, others),
            )
        return reasons, others


def find_alike(table: SourceTable, current: int, bands: int, matches: Matches) -> None:
    """Note the documents of a source that are alike to one of a source before it, or to any other's earlier or held-out one."""
    for documents, keys in _equal_texts(table):
        _note(table, current, DUPLICATE, documents, keys, matches)
    for band in range(bands):
        for documents, keys in table.signatures.equal_keys(1 + band):
            _note(table, current, NEAR_DUPLICATE, documents, keys[None], matches)


def _equal_texts(table: SourceTable) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield documents with keys of their text, 128 bits each, equal ones together."""
    for documents, high in table.signatures.equal_keys(EXACT):
        low = table.signatures.column("exact_low", documents)
        order = np.lexsort((documents, low, high))
        yield documents[order], np.stack((high, low))[:, order]
    # A language without spaces has other keys: of equal texts the ids are equal in all.
    for documents in table.signatures.by_id():
        halves = [table.signatures.column(name, documents) for name in ("id_high", "id_low")]
        order = np.lexsort((documents, halves[1], halves[0]))
        yield documents[order], np.stack(halves)[:, order]


def _note(
    table: SourceTable, current: int, reason: int, documents: Numbers, keys: Numbers, matches: Matches
) -> None:
    """Note matches among documents, ordered by key and number; shape of the keys (parts, documents)."""
    is_first = np.ones(len(documents), dtype=bool)
    is_first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    shared = ~(is_first & np.append(is_first[1:], True))
    documents, is_first = documents[shared], is_first[shared]
    group = np.cumsum(is_first) - 1
    numbers = table.numbers(current)
    is_own = (documents >= numbers.start) & (documents < numbers.stop)
    is_earlier = table.is_earlier(documents)
    # Numbers follow the order of sources: the lowest of a key is of the source that comes first. Earlier text stays before it.
    is_before, is_other = documents < numbers.start, ~is_own
    nobody = table.signatures.num_documents

    def lowest(chosen: Numbers) -> Numbers:
        others = np.full(int(is_first.sum()), nobody, dtype=np.int64)
        np.minimum.at(others, group[chosen], documents[chosen])
        return others

    others = lowest(is_earlier & is_other)
    of_new = np.where(others < nobody, others, lowest(~is_earlier & is_before))
    for rows, others in (
        (is_own & is_earlier, lowest(is_earlier & is_before)),
        (is_own & ~is_earlier, of_new),
    ):
        _note_groups(reason, others, others < nobody, documents[rows], group[rows], matches)
    held = lowest(is_other & np.isin(documents, table.heldout))
    _note_groups(HELDOUT, held, held < nobody, documents[is_own], group[is_own], matches)


def _note_groups(
    reason: int, others: Numbers, valid: Numbers, documents: Numbers, group: Numbers, matches: Matches
) -> None:
    chosen = valid[group]
    matches.note(reason, documents[chosen], others[group[chosen]])
