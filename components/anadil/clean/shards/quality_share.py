"""Rank documents by `clean.quality_model`: tenths for people, and the threshold that keeps a share of the words.

The share is of the documents that no rule drops and that repeat no other. Scores are counted by the bits of their numbers,
the upper half first, so that memory does not depend on the number of documents.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from anadil.artifacts.local_directory import link
from anadil.clean.dedup.find_duplicates import POOR, Verdicts
from anadil.clean.dedup.sorted_documents import Numbers, SortedDocuments
from anadil.clean.filters.clean_stats import Row
from anadil.clean.write.shard_output import ROWS

TENTHS = 10
HALF = 16
"""Bits of a half of a key. Keys are the bits of a score, whose order is that of the scores."""
LOW = (1 << HALF) - 1
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Scores of the new documents that dedup kept."""

    shards: tuple[Path, ...]
    starts: tuple[int, ...]
    """Number of the first document of each shard."""
    verdicts: Verdicts

    def pieces(self) -> Iterator[tuple[Numbers, Numbers, Floats]]:
        """Yield numbers, keys and words of the documents of each shard."""
        for folder, start in zip(self.shards, self.starts, strict=True):
            shard = SortedDocuments(folder)
            numbers = np.arange(start, start + shard.num_rows)
            rows = pq.read_table(folder / ROWS, columns=["record", "quality"])
            places = np.searchsorted(rows["record"].to_numpy(), np.asarray(shard.column("record")))
            keys = rows["quality"].to_numpy()[places].astype(np.float32).view(np.uint32)
            stays = self.verdicts.is_kept(numbers)
            yield numbers[stays], keys[stays], np.asarray(shard.column("num_words"))[stays].astype(np.float64)

    def totals(self) -> tuple[int, int]:
        """Count documents and words."""
        sizes = [(len(numbers), words.sum()) for numbers, _, words in self.pieces()]
        return sum(size for size, _ in sizes), int(sum(words for _, words in sizes))

    def bounds(self, shares: Sequence[float], *, of_words: bool) -> list[int]:
        """Return for each share the largest key at which documents with it or a larger key hold the share."""
        upper = np.zeros(1 << HALF)
        for _, keys, words in self.pieces():
            upper += np.bincount(keys >> HALF, words if of_words else None, len(upper))
        larger = np.append(np.cumsum(upper[::-1])[::-1], 0)
        goals = [share * larger[0] for share in shares]
        bins = [int(np.flatnonzero(larger >= goal)[-1]) for goal in goals]
        lower = {each: np.zeros(1 << HALF) for each in bins}
        for _, keys, words in self.pieces():
            for each in lower:
                chosen = keys >> HALF == each
                lower[each] += np.bincount(keys[chosen] & LOW, words[chosen] if of_words else None, 1 << HALF)
        results = []
        for each, goal in zip(bins, goals, strict=True):
            within = np.cumsum(lower[each][::-1])[::-1] + larger[each + 1]
            results.append(each << HALF | int(np.flatnonzero(within >= goal)[-1]))
        return results


def score_of(key: int) -> float:
    """Score of a key."""
    return float(np.array(key, np.uint32).view(np.float32))


def tenths(ranking: Ranking) -> list[Row]:
    """Return the documents by tenths of their number, best first: lowest score, counts, and the document with the lowest id."""
    bounds = np.array(sorted(ranking.bounds([each / TENTHS for each in range(1, TENTHS)], of_words=False)))
    documents, words = np.zeros(TENTHS, np.int64), np.zeros(TENTHS)
    lowest, firsts = np.full(TENTHS, np.inf), [(1 << 64, 0)] * TENTHS
    for (numbers, keys, counts), folder, start in zip(
        ranking.pieces(), ranking.shards, ranking.starts, strict=True
    ):
        tenth = TENTHS - 1 - np.searchsorted(bounds, keys, side="right")
        documents += np.bincount(tenth, minlength=TENTHS)
        words += np.bincount(tenth, counts, TENTHS)
        np.minimum.at(lowest, tenth, keys.view(np.float32))
        ids = np.asarray(SortedDocuments(folder).column("id_high"))[numbers - start]
        for each in np.unique(tenth).tolist():
            place = int(np.flatnonzero(tenth == each)[np.argmin(ids[tenth == each])])
            firsts[each] = min(firsts[each], (int(ids[place]), int(numbers[place])))
    return [
        {"from": float(lowest[each]), "documents": int(documents[each]), "words": int(words[each]), "first": firsts[each][1]}
        for each in range(TENTHS)
        if documents[each]
    ]  # fmt: skip


def drop_poor(ranking: Ranking, key: int, folder: Path) -> None:
    """Write verdicts of which the documents below a key are poor."""
    source = ranking.verdicts.folder
    for name in ("duplicate_of", "cluster_size"):
        link(source / f"{name}.npy", folder / f"{name}.npy")
    verdict = np.lib.format.open_memmap(
        folder / "verdict.npy", "w+", np.uint8, (len(ranking.verdicts.verdict),)
    )
    verdict[:] = ranking.verdicts.verdict
    for numbers, keys, _ in ranking.pieces():
        verdict[numbers[keys < key]] = POOR
    verdict.flush()
