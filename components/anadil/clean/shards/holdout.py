"""Choose the documents that are held out of training: of those with the lowest hashes, such as share no run of words.

What stands in the training part, too, cannot be scored (`anadil.evaluate.heldout`). So more documents are looked
at than are held out, each shard is asked for their runs, and those that share one go to the training part.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from anadil.artifacts import sealed_dir
from anadil.clean.dedup.find_duplicates import KEPT, Verdicts
from anadil.clean.dedup.sorted_documents import Numbers, Signatures, SortedDocuments
from anadil.clean.filters.judge_record import Settings
from anadil.clean.kernels.minhash import Hashes, MinHash, distinct
from anadil.clean.shards.since import EarlierCorpus
from anadil.clean.shards.workspace import DOCUMENTS, Workspace
from anadil.clean.write.corpus_parts import text_of
from anadil.core.format import counted
from anadil.recipe.clean import Clean
from anadil.runtime.executor import Executor, FolderTask
from anadil.text import ngram_overlap
from anadil.text.corpus import read_documents, text_batches
from anadil.text.language import load_language
from anadil.text.language_data import Language

log = logging.getLogger(__name__)

ID_DIGITS = 16
"""Digits of an id that decide: its upper half."""
LOOKED_AT = 4
"""Times the documents that are held out. Chosen by us: of a manual a fifth share a run, of law a half."""
RUNS, ENDS, FILTER, HITS = "runs.bin", "ends.npy", "filter.npy", "hits.npy"
MAX_FILTER_BITS = 27
"""16 MiB for a filter, which one in ten other runs passes where 8,000 documents have 1,500 runs each."""
PART_RUNS = 1 << 19
"""Runs that are compared at a time, at some 60 bytes of memory for each."""
BATCH_CHARS = 1 << 18
"""Characters whose runs are hashed at a time."""
HeldOut = tuple[Numbers, dict[str, int]]
"""Numbers of the held-out documents, and counts: held out, looked at, sharing text with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsTask(FolderTask):
    """Everything that a process needs to look for the candidates' runs in one shard."""

    shard: Path
    verdicts: Path
    first_document: int
    candidates: Path
    """Folder of the filter, and of the documents that its runs are from."""
    language: str


def lowest_bound(fraction: float) -> int:
    """Return the upper half of an id from which on a document is not held out, if there are enough of them."""
    return math.ceil(fraction * 16.0**ID_DIGITS)


def num_heldout(num_below: int, num_documents: int, max_documents: int) -> int:
    """Count the documents to hold out, of those below `lowest_bound`: one at least, and one is left for training."""
    return min(max(1, num_below), max_documents, num_documents - 1)


def write_candidates(texts: Iterable[str], language: Language, folder: Path) -> None:
    """Write the runs of each text, one after another, and a filter that only these and few others pass."""
    hasher, lengths = run_hasher(language), [0]
    with (folder / RUNS).open("wb") as file:
        for text in texts:
            runs = hasher.runs([text])
            file.write(runs.data)
            lengths.append(len(runs))
    np.save(folder / ENDS, np.cumsum(lengths))
    num_bits = 1 << min(MAX_FILTER_BITS, max(10, (16 * sum(lengths)).bit_length()))
    bits = np.zeros(num_bits // 8, dtype=np.uint8)
    for _, runs in _runs_of(folder):
        places = runs & np.uint64(num_bits - 1)
        np.bitwise_or.at(
            bits, places >> np.uint64(3), np.uint8(1) << (places & np.uint64(7)).astype(np.uint8)
        )
    np.save(folder / FILTER, bits)


def _runs_of(folder: Path) -> Iterator[tuple[int, Hashes]]:
    """Yield runs of the candidates in parts, each with the number of its first one."""
    for start in range(0, (folder / RUNS).stat().st_size // 8, PART_RUNS):
        yield start, np.fromfile(folder / RUNS, np.uint64, PART_RUNS, offset=8 * start)


class Candidates:
    """Documents that may be held out, or were held out of an earlier corpus, by what `write_candidates` wrote.

    Memory follows `PART_RUNS`, not the corpus: all runs of 8,000 documents took 200 MiB in each process.
    """

    def __init__(self, folder: Path, language: Language) -> None:
        self._folder, self._sizes = folder, _sizes(language)
        self._ends = np.load(folder / ENDS)

    def choose(self, hits: Sequence[Path], documents: Numbers, most: int) -> HeldOut:
        """Hold out the first of those that share no run; where these are too few, others of which little was seen.

        `hits` are files of runs of other documents, sorted.
        """
        shares, is_contaminated = self._judge(self._marks(hits, is_shared_seen=True))
        order = np.lexsort((shares, is_contaminated))
        # Where every document repeats others, one is held out all the same.
        chosen = np.sort(order[: min(most, max(1, int((~is_contaminated).sum())))])
        return documents[chosen], _counts(len(chosen), shares, shares[chosen], is_contaminated[chosen])

    def of_earlier(self, hits: Sequence[Path]) -> HeldOut:
        """Count what new documents share with earlier held-out ones."""
        shares, is_contaminated = self._judge(self._marks(hits, is_shared_seen=False))
        return np.empty(0, dtype=np.int64), _counts(0, shares, shares, is_contaminated)

    def _judge(self, marks: Numbers) -> tuple[Numbers, Numbers]:
        """Return masks over the documents: sharing a run, contaminated."""
        figures = [
            ngram_overlap.seen_document("", marks[start:end], *self._sizes)
            for start, end in pairwise(self._ends)
        ]
        masks = np.array([(each.share > 0, each.is_contaminated) for each in figures], dtype=bool)
        shares, is_contaminated = masks.reshape(-1, 2).T
        return shares, is_contaminated

    def _marks(self, hits: Sequence[Path], *, is_shared_seen: bool) -> Numbers:
        """True for each run that other documents hold, or two of these: a range of hashes at a time."""
        num_runs = int(self._ends[-1])
        marks = np.zeros(num_runs, dtype=bool)
        num_parts = -(-num_runs // PART_RUNS)
        for part in range(num_parts):
            low, high = (np.uint64(((part + end) << 64) // num_parts - end) for end in (0, 1))
            pieces = [
                (start + inside, runs[inside])
                for start, runs in _runs_of(self._folder)
                for inside in (np.flatnonzero((low <= runs) & (runs <= high)),)
            ]
            places, runs = map(np.concatenate, zip(*pieces, strict=True))
            distinct, first, group = np.unique(runs, return_index=True, return_inverse=True)
            is_seen = np.zeros(len(distinct), dtype=bool)
            if is_shared_seen:
                document = np.searchsorted(self._ends, places, side="right")
                is_seen[group[document != document[first][group]]] = True
            for path in hits:
                others = np.load(path, mmap_mode="r")
                others = others[np.searchsorted(others, low) : np.searchsorted(others, high, side="right")]
                is_seen |= np.isin(distinct, others, assume_unique=True)
            marks[places] = is_seen[group]
        return marks


def _counts(
    num_heldout: int, shares: Numbers, heldout_shares: Numbers, contaminated: Numbers
) -> dict[str, int]:
    return {
        "documents": num_heldout, "looked_at": len(shares), "sharing": int(shares.sum()),
        "held_out_sharing": int(heldout_shares.sum()), "contaminated": int(contaminated.sum()),
    }  # fmt: skip


def hold_out(
    workspace: Workspace, signatures: Signatures, verdicts: Verdicts, executor: Executor, settings: Settings,
    earlier: EarlierCorpus | None,
) -> HeldOut:  # fmt: skip
    """Choose the documents that are held out; with an earlier corpus, ask what the new ones share with its held-out part."""
    recipe = settings.recipe.clean
    documents, most = np.empty(0, dtype=np.int64), 0
    if earlier:
        # Both directions of a pair hold the same text, and count as one document.
        texts = iter({each.id: each.text for each in read_documents(earlier.folder, "heldout")}.values())
    else:
        most = _num_heldout(signatures, verdicts, recipe)
        documents = np.array(signatures.lowest_ids(verdicts.is_kept, LOOKED_AT * most), dtype=np.int64)
        texts = map(text_of, map(signatures.line, documents.tolist()))
    with sealed_dir.create(workspace.candidates_folder, {"key": workspace.heldout_key}) as draft:
        write_candidates(texts, settings.language, draft)
        np.save(draft / DOCUMENTS, documents)
    candidates = Candidates(workspace.candidates_folder, settings.language)
    tasks = _tasks(workspace, signatures, settings)
    executor.map(find_runs, tasks)
    hits = [task.folder / HITS for task in tasks]
    heldout, counts = candidates.of_earlier(hits) if earlier else candidates.choose(hits, documents, most)
    _log(counts, most)
    with sealed_dir.create(workspace.heldout_folder, {"key": workspace.heldout_key}) as draft:
        np.save(draft / DOCUMENTS, heldout)
    return heldout, counts


def find_runs(task: RunsTask) -> None:
    """Write the runs of the other kept documents of a shard that pass the candidates' filter, sorted."""
    if task.is_done():
        return
    shard, hasher = SortedDocuments(task.shard), run_hasher(load_language(task.language))
    numbers = np.arange(task.first_document, task.first_document + shard.num_rows)
    looked_at = np.load(task.candidates / DOCUMENTS)
    is_read = Verdicts(task.verdicts).is_kept(numbers) & ~np.isin(numbers, looked_at)
    bits = np.load(task.candidates / FILTER)
    texts = (text_of(line) for row, line in shard.lines(0, shard.num_rows) if is_read[row])
    with task.draft() as draft:
        batches = text_batches(texts, BATCH_CHARS)
        hits = [np.empty(0, np.uint64), *(hasher.runs(batch, bits).copy() for batch in batches)]
        np.save(draft / HITS, distinct(np.concatenate(hits)))


def run_hasher(language: Language) -> MinHash:
    """Return what hashes each run of eight words of a text, or of 40 characters where no spaces are written."""
    return MinHash(language, bands=1, rows=1, shingle=_sizes(language)[0])


def _sizes(language: Language) -> tuple[int, int]:
    if language.shingle_units("ab") == ["a", "b"]:
        return ngram_overlap.CHARACTERS_OF_NGRAM, ngram_overlap.CHARACTERS_OF_STRETCH
    return ngram_overlap.WORDS_OF_NGRAM, ngram_overlap.WORDS_OF_STRETCH


def _num_heldout(signatures: Signatures, verdicts: Verdicts, recipe: Clean) -> int:
    bound = np.uint64(min(lowest_bound(recipe.heldout_fraction), 2**64 - 1))
    num_documents = num_below = 0
    for shard, start in zip(signatures.shards, signatures.starts, strict=False):
        is_kept = verdicts.verdict[start : start + shard.num_rows] == KEPT
        num_documents += int(is_kept.sum())
        num_below += int(is_kept[: np.searchsorted(shard.column("id_high"), bound)].sum())
    return num_heldout(num_below, num_documents, recipe.heldout_max_documents)


def _tasks(workspace: Workspace, signatures: Signatures, settings: Settings) -> list[RunsTask]:
    starts = signatures.starts[len(workspace.held_folders) :].tolist()
    return [
        RunsTask(
            shard=shard, verdicts=workspace.dedup_folder, first_document=start,
            candidates=workspace.candidates_folder, language=settings.recipe.language,
            folder=workspace.runs_folder(shard), key=workspace.heldout_key,
        )
        for shard, start in zip(workspace.shard_folders, starts, strict=False)
    ]  # fmt: skip


def _log(counts: dict[str, int], most: int) -> None:
    documents = counted(counts["documents"], "document")
    if counts["sharing"] and counts["documents"]:
        log.info(
            "held out %s; of %d looked at, %d share a run of words with others, %d of them held out",
            documents, counts["looked_at"], counts["sharing"], counts["held_out_sharing"],
        )  # fmt: skip
    if counts["documents"] < most:
        log.warning(
            "held out %s instead of %d: most of the others stands in the training part, too; for scores, name text from "
            "elsewhere in evaluate.heldout",
            documents, most,
        )  # fmt: skip
    if counts["contaminated"]:
        log.warning(
            "%d of the held-out documents stand in the training part, too, and evaluate.gate.max_contaminated_share counts "
            "them; name text from elsewhere in evaluate.heldout",
            counts["contaminated"],
        )
