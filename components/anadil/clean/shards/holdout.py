"""Choose the documents that are held out of training: of those with the lowest hashes, such as share no run of words.

What stands in the training part, too, cannot be scored (`anadil.evaluate.heldout`). So more documents are looked
at than are held out, each shard is asked for their runs, and those that share one go to the training part.
"""

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anadil.artifacts import sealed_dir
from anadil.clean.dedup.find_duplicates import KEPT, Verdicts
from anadil.clean.dedup.signatures import Signatures
from anadil.clean.dedup.sorted_documents import Numbers, SortedDocuments
from anadil.clean.filters.judge_record import Settings
from anadil.clean.kernels.minhash import Hashes, MinHash
from anadil.clean.shards.since import EarlierCorpus
from anadil.clean.shards.workspace import DOCUMENTS, Workspace
from anadil.clean.write.corpus_parts import text_of
from anadil.core.format import counted
from anadil.recipe.clean import Clean
from anadil.runtime.executor import Executor
from anadil.text import overlap
from anadil.text.corpus import read_documents
from anadil.text.language import load_language
from anadil.text.language_data import Language

log = logging.getLogger(__name__)

ID_DIGITS = 16
"""Digits of an id that decide: its upper half."""
LOOKED_AT = 4
"""Times the documents that are held out. Chosen by us: of a manual a fifth share a run, of law a half."""
RUNS, SEEN = "runs.npy", "seen.npy"
HeldOut = tuple[Numbers, dict[str, int]]
"""Numbers of the held-out documents, and counts: of them, of those looked at, and of those that share text with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsTask:
    """Everything that a process needs to look for the candidates' runs in one shard."""

    shard: Path
    verdicts: Path
    first_document: int
    """Number of the shard's first document."""
    candidates: Path
    """Folder of the runs to look for, and of the documents that they are from."""
    language: str
    folder: Path
    key: str

    @property
    def name(self) -> str:
        """For messages."""
        return f"runs of {self.shard.name}"


def lowest_bound(fraction: float) -> int:
    """Return the upper half of an id from which on a document is not held out, if there are enough of them."""
    return math.ceil(fraction * 16.0**ID_DIGITS)


def num_heldout(num_below: int, num_documents: int, max_documents: int) -> int:
    """Count the documents to hold out, of those below `lowest_bound`: one at least, and one is left for training."""
    return min(max(1, num_below), max_documents, num_documents - 1)


class Candidates:
    """Documents that may be held out, or were held out of an earlier corpus, and their runs."""

    def __init__(self, texts: Sequence[str], language: Language) -> None:
        runs_of = run_hasher(language)
        self._runs = [runs_of(text) for text in texts]
        self._sizes = _sizes(language)
        distinct = [np.empty(0, np.uint64), *map(np.unique, self._runs)]
        self.runs, counts = np.unique(np.concatenate(distinct), return_counts=True)
        """All their runs, sorted."""
        self.is_shared = counts > 1
        """True for runs that two of the documents hold."""

    def choose(self, seen: Numbers, documents: Numbers, most: int) -> HeldOut:
        """Hold out the first of those that share no run; where these are too few, others of which little was `seen`."""
        shares, is_contaminated = self._judge(seen | self.is_shared)
        order = np.lexsort((shares, is_contaminated))
        # Where every document repeats others, one is held out all the same.
        chosen = np.sort(order[: min(most, max(1, int((~is_contaminated).sum())))])
        return documents[chosen], _counts(len(chosen), shares, shares[chosen], is_contaminated[chosen])

    def of_earlier(self, seen: Numbers) -> HeldOut:
        """Count what new documents share with those that were held out before."""
        shares, is_contaminated = self._judge(seen)
        return np.empty(0, dtype=np.int64), _counts(0, shares, shares, is_contaminated)

    def _judge(self, seen: Numbers) -> tuple[Numbers, Numbers]:
        """Return masks over the documents: those that share a run, and those that are contaminated."""
        index = overlap.SeenNgrams(self.runs)
        index.seen = seen
        figures = [overlap.seen_document("", index.seen_of(runs), *self._sizes) for runs in self._runs]
        masks = np.array([(each.share > 0, each.is_contaminated) for each in figures], dtype=bool)
        shares, is_contaminated = masks.reshape(-1, 2).T
        return shares, is_contaminated


def _counts(
    num_heldout: int, shares: Numbers, heldout_shares: Numbers, contaminated: Numbers
) -> dict[str, int]:
    return {
        "documents": num_heldout, "looked_at": len(shares), "sharing": int(shares.sum()),
        "held_out_sharing": int(heldout_shares.sum()), "contaminated": int(contaminated.sum()),
    }  # fmt: skip


def hold_out(
    workspace: Workspace,
    signatures: Signatures,
    verdicts: Verdicts,
    executor: Executor,
    settings: Settings,
    earlier: EarlierCorpus | None,
) -> HeldOut:
    """Choose the documents that are held out; with an earlier corpus, ask what the new ones share with its held-out part."""
    recipe = settings.recipe.clean
    documents, most = np.empty(0, dtype=np.int64), 0
    if earlier:
        # Both directions of a pair hold the same text, and count as one document.
        texts = [*{each.id: each.text for each in read_documents(earlier.folder, "heldout")}.values()]
    else:
        most = _num_heldout(signatures, verdicts, recipe)
        documents = np.array(signatures.lowest_ids(verdicts.is_kept, LOOKED_AT * most), dtype=np.int64)
        texts = [json.loads(signatures.line(document))["text"] for document in documents.tolist()]
    candidates = Candidates(texts, settings.language)
    tasks = _tasks(workspace, signatures, candidates, documents, settings)
    executor.map(find_runs, tasks)
    seen = np.zeros(len(candidates.runs), dtype=bool)
    for task in tasks:
        seen |= np.load(task.folder / SEEN)
    heldout, counts = candidates.of_earlier(seen) if earlier else candidates.choose(seen, documents, most)
    _log(counts, most)
    with sealed_dir.create(workspace.heldout_folder, {"key": workspace.heldout_key}) as draft:
        np.save(draft / DOCUMENTS, heldout)
    return heldout, counts


def find_runs(task: RunsTask) -> None:
    """Write which of the candidates' runs the other kept documents of a shard hold."""
    if sealed_dir.verify(task.folder, {"key": task.key}):
        return
    shard, runs_of = SortedDocuments(task.shard), run_hasher(load_language(task.language))
    numbers = np.arange(task.first_document, task.first_document + shard.num_rows)
    looked_at = np.load(task.candidates / DOCUMENTS)
    is_read = Verdicts(task.verdicts).is_kept(numbers) & ~np.isin(numbers, looked_at)
    index = overlap.SeenNgrams(np.load(task.candidates / RUNS))
    with sealed_dir.create(task.folder, {"key": task.key}) as draft:
        for row, line in shard.lines(0, shard.num_rows):
            if is_read[row]:
                index.mark(runs_of(text_of(line)))
        np.save(draft / SEEN, index.seen)


def run_hasher(language: Language) -> Callable[[str], Hashes]:
    """Return the function that hashes each run of eight words of a text, or of 40 characters where no spaces are written."""
    return MinHash(language, bands=1, rows=1, shingle=_sizes(language)[0]).runs


def _sizes(language: Language) -> tuple[int, int]:
    if language.shingle_units("ab") == ["a", "b"]:
        return overlap.CHARACTERS_OF_NGRAM, overlap.CHARACTERS_OF_STRETCH
    return overlap.WORDS_OF_NGRAM, overlap.WORDS_OF_STRETCH


def _num_heldout(signatures: Signatures, verdicts: Verdicts, recipe: Clean) -> int:
    bound = np.uint64(min(lowest_bound(recipe.heldout_fraction), 2**64 - 1))
    num_documents = num_below = 0
    for shard, start in zip(signatures.shards, signatures.starts, strict=False):
        is_kept = verdicts.verdict[start : start + shard.num_rows] == KEPT
        num_documents += int(is_kept.sum())
        num_below += int(is_kept[: np.searchsorted(shard.column("id_high"), bound)].sum())
    return num_heldout(num_below, num_documents, recipe.heldout_max_documents)


def _tasks(
    workspace: Workspace,
    signatures: Signatures,
    candidates: Candidates,
    documents: Numbers,
    settings: Settings,
) -> list[RunsTask]:
    """Write the runs to look for, and make a task for each shard."""
    with sealed_dir.create(workspace.candidates_folder, {"key": workspace.heldout_key}) as draft:
        np.save(draft / RUNS, candidates.runs)
        np.save(draft / DOCUMENTS, documents)
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
