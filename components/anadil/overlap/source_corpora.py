"""The corpora of all sources: held-out documents, and the indexes of all as one table of signatures."""

import heapq
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path

import numpy as np

from anadil.artifacts import artifact, sealed_dir, storage
from anadil.artifacts.artifact import Manifest, finished_manifest, remedy_of
from anadil.artifacts.uri import join
from anadil.clean.dedup.sorted_documents import MASK, Numbers, Signatures, id_of
from anadil.clean.shards.since import INDEX, INDEX_META, key_settings, other_settings, write_columns
from anadil.core.errors import DataError, IntegrityError
from anadil.core.json_text import read_json
from anadil.recipe.clean import Clean
from anadil.recipe.sections import Recipe
from anadil.runtime.executor import Executor
from anadil.runtime.job import Job
from anadil.text.corpus import Document, read_documents

ID_KIND = [("high", np.uint64), ("low", np.uint64)]
"""Halves of an id."""


@dataclass(frozen=True, kw_only=True)
class SourceCorpus:
    """The corpus of a source, local."""

    source: str
    uri: str
    """Its place, for messages."""
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
class ColumnsTask:
    """Everything that a process needs to sort the keys of one file of an index."""

    file: Path
    ids: Path | None
    """File of the ids that are taken; None: all."""
    folder: Path
    key: str

    @property
    def name(self) -> str:
        """For messages."""
        return f"keys of {self.file.parent.parent.name}/{self.file.name}"


def sort_keys(task: ColumnsTask) -> None:
    """Write the keys of a file of an index in their own order, unless it is done."""
    if sealed_dir.verify(task.folder, {"key": task.key}):
        return
    with sealed_dir.create(task.folder, {"key": task.key}) as draft:
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


EXCLUDED, STATS, RUN_COUNTS = "excluded.jsonl", "overlap.json", "run_counts.npy"
"""Documents that are left out, sorted by id, with reason and counterpart; counts of them; and how many documents hold each
run of held-out text, up to 255."""
Row = dict[str, str]
"""Document that is left out: `id`, `reason`, and `of` and `of_id` of the one that it gives way to."""


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
    """Digest of the runs of held-out text that were looked for; empty where an earlier release looked."""
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
    rows: list[Row] = [json.loads(line) for line in store.read(join(uri, EXCLUDED)).splitlines()]
    stats = json.loads(store.read(join(uri, STATS)))
    counts = io.BytesIO(store.read(join(uri, RUN_COUNTS))) if RUN_COUNTS in manifest.files else None
    corpus = artifact.finished_manifest(_place(recipe, f"corpus.{source}"), "corpus")
    return ChampionList(
        # A document whose counterpart is gone with its source is training text again.
        rows=[row for row in rows if row["of"] in sources],
        files=frozenset(name for name in corpus.files if name.startswith("train/")),
        runs=str(stats.get("runs", "")),
        run_counts=np.load(counts) if counts else np.empty(0, dtype=np.uint8),
        boilerplate_documents=int(stats["boilerplate"]["documents"]),
    )


def merged(computed: Iterable[Row], stored: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of both by id; of two for a document that of the champion."""
    rows = heapq.merge(stored, computed, key=itemgetter("id"))
    return (next(same) for _, same in itertools.groupby(rows, key=itemgetter("id")))


def _place(recipe: Recipe, word: str) -> str:
    champion = recipe.retrain.champion if recipe.retrain else None
    return champion.artifacts.get(word, "") if champion else ""
