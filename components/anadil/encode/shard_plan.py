"""Shards that an artifact of tokens gets: those that the champion of a retraining has, and those that are encoded."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from anadil.core.json_text import read_json
from anadil.encode.blocks import BLOCK_TOKENS, Span, joined, spans_of
from anadil.encode.earlier_tokens import ChampionTokens, EarlierPart
from anadil.encode.encode_file import FACTS, EncodeTask
from anadil.encode.tokens_file import ShardFacts


@dataclass(kw_only=True)
class ShardPlan:
    """Files of a corpus, those that the champion was trained on first."""

    earlier: list[EncodeTask]
    new: list[EncodeTask]
    heldout: list[EncodeTask]
    champion: ChampionTokens | None = None
    stored: dict[Path, ShardFacts] = field(default_factory=dict)
    """File of the corpus -> shard that the champion has of it."""

    @property
    def train(self) -> list[EncodeTask]:
        """Files of the training part."""
        return [*self.earlier, *self.new]

    def unmade(self, tasks: Sequence[EncodeTask]) -> list[EncodeTask]:
        """Those that the champion has no shard of."""
        return [task for task in tasks if task.file not in self.stored]

    def spans(self, shards: Sequence[ShardFacts], length: int, *, has_sources: bool) -> list[Span]:
        """Cut the shards of `train` into blocks; none holds shards of both parts."""
        num = len(self.earlier)

        def cut_into_blocks(first: int, end: int) -> list[Span]:
            some = shards[first:end]
            # Without sources the sequences are those of all documents together, as they always were.
            most = BLOCK_TOKENS if has_sources else sum(shard.tokens for shard in some)
            return spans_of(some, first, most)

        early = self.champion.spans(length) if self.champion else cut_into_blocks(0, num)
        early = [replace(span, is_earlier=True) for span in early]
        return joined([*early, *cut_into_blocks(num, len(shards))], shards)

    def stream_digest(self) -> str:
        """Digest of the ids: equal ones mean equal ids."""
        if not self.champion:
            # Sixteen digits, because checkpoints of earlier releases name their stream so.
            return _hash([_digest_of(task) for task in self.train])
        # No byte of the champion's shards is read: its own digest stands for them.
        made = [f"{task.file.name} {_digest_of(task)}" for task in self.unmade(self.train)]
        return _hash([self.champion.facts.stream, *made]) if made else self.champion.facts.stream


def shard_plan(
    train: Sequence[EncodeTask],
    heldout: Sequence[EncodeTask],
    earlier: EarlierPart | None,
    max_tokens: int | None,
) -> ShardPlan:
    """Divide the files of a corpus; see `earlier_part`."""
    files = earlier.files if earlier else frozenset()
    early, new = (
        [task for task in train if (stem_of(task) in files) == is_early] for is_early in (True, False)
    )
    champion = earlier.tokens if earlier else None
    if champion is None:
        return ShardPlan(earlier=early, new=new, heldout=list(heldout))
    theirs = {Path(shard.file).stem: shard for shard in champion.facts.train}
    # Those that it has no shard of lie behind its `max_tokens`.
    early = [task for task in early if stem_of(task) in theirs]
    stored = {
        task.file: shard
        for part, tasks in (("train", early), ("heldout", heldout))
        for task in tasks
        if (shard := champion.shards("train" if part == "train" else "heldout").get(stem_of(task)))
    }
    if max_tokens is not None:
        early = [task if task.file in stored else cut(task, theirs[stem_of(task)].tokens) for task in early]
    return ShardPlan(earlier=early, new=new, heldout=list(heldout), champion=champion, stored=stored)


def cut(task: EncodeTask, most_tokens: int) -> EncodeTask:
    """Return the task that ends after so many tokens, behind a whole document."""
    return replace(
        task,
        # A folder of its own: the whole shard serves the next run, which may have a larger limit.
        folder=task.folder.with_name(f"{task.folder.name}-{most_tokens}"),
        most_tokens=most_tokens,
        origin={**task.origin, "most tokens": str(most_tokens)},
    )


def stem_of(task: EncodeTask) -> str:
    """Name of the task's file without its endings."""
    return task.file.name.partition(".")[0]


def _digest_of(task: EncodeTask) -> str:
    return str(read_json(task.folder / FACTS)["digest"])


def _hash(digests: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]
