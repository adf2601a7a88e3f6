"""Shards and blocks that an artifact of tokens gets: those that the champion of a retraining has, and those that are made.

A corpus of `clean.since` begins with the files of the earlier corpus. Their shards and blocks stay byte for byte, so that
the cost is that of the new files, and a position in the earlier text means the same in both artifacts. Blocks are packed
sequences over consecutive shards.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.local_directory import link
from anadil.artifacts.prefetch import fetch_from, fill
from anadil.artifacts.uri import join
from anadil.core.errors import IntegrityError
from anadil.core.format import counted
from anadil.core.json_text import read_json
from anadil.core.stages import PIECES, WRITERS
from anadil.runtime.cache_key import INPUT, RESULT_VERSION
from anadil.runtime.job import Copy
from anadil.text.corpus import CorpusPart, read_ids
from anadil.text.excluded import EXCLUDED, EXCLUDING, excluded_rows
from anadil.tokens.encode_file import FACTS, EncodeTask
from anadil.tokens.packing import Places, TokenStream, pack
from anadil.tokens.tensor_file import TensorFile, TensorWriter
from anadil.tokens.tokens_file import BlockFacts, ShardFacts, TokensFacts, read_facts

log = logging.getLogger(__name__)

BLOCK_TOKENS = 2**28
"""Most tokens of the shards that are packed together: a GiB of ids, as much as training reads at random at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive shards of one block."""

    first_shard: int
    num_shards: int
    is_earlier: bool = False
    """True if the champion of a retraining holds them."""
    stored: BlockFacts | None = None
    """The champion's block of them, which is taken as it is."""


def spans_of(shards: Sequence[ShardFacts], first: int, most: int) -> Iterator[Span]:
    """Spans of `most` tokens, of which the first begins with shard `first`; a larger shard is a span of its own."""
    total, end = 0, first + len(shards)
    for number, shard in enumerate(shards, first):
        # A block needs a token, and so takes empty shards along.
        if total and shard.tokens and total + shard.tokens > most:
            yield Span(first_shard=first, num_shards=number - first)
            first, total = number, 0
        total += shard.tokens
    if end > first:
        yield Span(first_shard=first, num_shards=end - first)


def joined(spans: Sequence[Span], shards: Sequence[ShardFacts]) -> list[Span]:
    """Return spans of which each has a document: others go to the one before them, or to the first that has one."""
    whole: list[Span] = []
    empty = 0
    for span in spans:
        listed = shards[span.first_shard : span.first_shard + span.num_shards]
        if any(shard.documents for shard in listed):
            first, num = span.first_shard - empty, span.num_shards + empty
            whole.append(replace(span, first_shard=first, num_shards=num))
            empty = 0
        elif whole:
            whole[-1] = replace(whole[-1], num_shards=whole[-1].num_shards + span.num_shards)
        else:
            empty += span.num_shards
    return whole


def write_block(
    file: Path,
    shards: Sequence[ShardFacts],
    opened: Callable[[ShardFacts], TensorFile],
    length: int,
    bos: int | None,
) -> BlockFacts:
    """Pack the documents of some shards and write the file; the facts lack the block's place among others."""
    # Packing needs lengths alone, so no ids are read.
    stream = TokenStream(ids=np.empty(0, dtype=np.int32), starts=_starts(shards, opened), digest="", bos=bos)
    packed = pack(stream, length)
    file.parent.mkdir(parents=True, exist_ok=True)
    with TensorWriter(file) as writer:
        writer.write("pieces", "I64", packed.pieces[:])
        writer.write("rows", "I64", packed.rows[:])
    return BlockFacts(
        file="", first_shard=0, num_shards=len(shards), pieces=len(packed.pieces),
        sequences=packed.num_sequences, targets=packed.num_targets, positions=packed.num_positions,
        crc32=writer.table_crc,
    )  # fmt: skip


def _starts(shards: Sequence[ShardFacts], opened: Callable[[ShardFacts], TensorFile]) -> Places:
    # 8 bytes for each document of the block; checked, since a disk may have torn what was just written.
    parts, total = [np.zeros(1, dtype=np.int64)], 0
    for shard in shards:
        parts.append(opened(shard).read("starts", 1, shard.documents + 1) + total)
        total += shard.tokens
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionTokens:
    """Finished tokens of the champion's corpus, made by the same tokenizer."""

    uri: str
    manifest: Manifest
    facts: TokensFacts
    remade: frozenset[str]
    """Shards, by the names of their files, of which a document is left out now and was not, or the reverse."""

    def shards(self, part: CorpusPart) -> dict[str, ShardFacts]:
        """File name without its ending -> shard that is taken as it is."""
        listed = self.facts.train if part == "train" else self.facts.heldout
        return {_stem(shard.file): shard for shard in listed if _stem(shard.file) not in self.remade}

    def spans(self, length: int) -> list[Span]:
        """Blocks of the training part; those of which a shard is made anew are packed anew, too."""
        return [
            Span(
                first_shard=block.first_shard, num_shards=block.num_shards,
                stored=block if self.facts.sequence_length == length and not self._is_changed(block) else None,
            )
            for block in self.facts.blocks
        ]  # fmt: skip

    def _is_changed(self, block: BlockFacts) -> bool:
        listed = self.facts.train[block.first_shard : block.first_shard + block.num_shards]
        return any(_stem(shard.file) in self.remade for shard in listed)

    def put(
        self, names: Mapping[str, str], out: Path, work: Path, copies: dict[str, Copy] | None
    ) -> dict[str, dict[str, str | int]]:
        """Put files into an artifact; return the manifest entries of those in `out`."""
        entries = {name: self.manifest.files[name] for name in names}
        folder = Path(self.uri)
        if "://" in self.uri:
            artifact.check_sizes(self.uri, self.manifest)
            if copies is not None:
                copies |= {
                    names[name]: Copy(uri=join(self.uri, name), entry=entry)
                    for name, entry in entries.items()
                }
                return {}
            folder = work / "earlier"
            fill(
                folder,
                entries,
                fetch_from(self.uri),
                self.uri,
                "set ANADIL_WORK to a directory on a larger disk",
            )
        for name, entry in entries.items():
            path = folder / name
            if "://" not in self.uri and not (path.is_file() and artifact.file_entry(path) == entry):
                raise IntegrityError(
                    f"{self.uri}/{name}: differs from its manifest; {artifact.remedy_of(self.uri)}"
                )
            link(path, out / names[name])
        return {names[name]: dict(entry) for name, entry in entries.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierPart:
    """Part of a corpus that the champion was trained on."""

    files: frozenset[str]
    """Names of files of the training part, without their endings."""
    tokens: ChampionTokens | None
    """None: there are none to use, and all files are encoded."""


def earlier_part(
    places: Mapping[str, str],
    corpus: Path,
    excluded: Path | None,
    is_usable: Callable[[TokensFacts], bool],
) -> EarlierPart | None:
    """Find the champion's part of a corpus; None if there is none."""
    if not places:
        return None
    theirs = artifact.finished_manifest(places["corpus"], "corpus")
    ours = artifact.finished_manifest(str(corpus), "corpus")
    listed = {
        name: digest for name, digest in _digests(theirs).items() if name.startswith(("train/", "heldout/"))
    }
    if differing := [name for name, digest in listed.items() if _digests(ours).get(name) != digest]:
        log.warning(
            "%s: does not begin with the champion's corpus %s (%s differs), so all of its text counts as new",
            corpus, places["corpus"], differing[0],
        )  # fmt: skip
        return None
    files = frozenset(_stem(name) for name in listed if name.startswith("train/"))
    tokens = _champion_tokens(places, theirs, corpus, excluded, is_usable)
    return EarlierPart(files=files, tokens=tokens)


def _champion_tokens(
    places: Mapping[str, str],
    corpus_manifest: Manifest,
    corpus: Path,
    excluded: Path | None,
    is_usable: Callable[[TokensFacts], bool],
) -> ChampionTokens | None:
    uri = places.get(PIECES, "")
    manifest = artifact.read_manifest(uri) if uri else None
    if manifest is None:
        log.warning(
            "%s: no finished tokens of the champion there, so all of the corpus is encoded",
            uri or "retrain.champion",
        )
        return None
    facts = read_facts(uri, manifest)
    is_current = manifest.origin.get(RESULT_VERSION) == str(WRITERS[PIECES].result_version)
    ids = _changed_ids(places.get(EXCLUDING, ""), manifest, excluded)
    if not is_current or not is_usable(facts) or facts.corpus != corpus_manifest.digest or ids is None:
        log.warning(
            "%s: tokens of another tokenizer, corpus, list or program; all of the corpus is encoded", uri
        )
        return None
    remade = frozenset(
        name
        for name in (_stem(shard.file) for shard in facts.train)
        if ids and not ids.isdisjoint(read_ids(corpus / "train" / f"{name}.jsonl.zst"))
    )
    if remade:
        log.info(
            "%s of the champion's tokens are made again: other documents are left out now",
            counted(len(remade), "shard"),
        )
    return ChampionTokens(uri=uri, manifest=manifest, facts=facts, remade=remade)


def _changed_ids(uri: str, tokens: Manifest, excluded: Path | None) -> frozenset[str] | None:
    """Documents that only one of the champion and this run leaves out; None if the champion's list is gone."""
    ours = _ids_of(excluded.read_bytes(), str(excluded)) if excluded else frozenset[str]()
    if not (digest := tokens.origin.get(f"{INPUT}{EXCLUDING}")):
        return ours
    manifest = artifact.read_manifest(uri) if uri else None
    if manifest is None or manifest.digest != digest:
        return None
    return ours ^ _ids_of(storage.store(uri).read(join(uri, EXCLUDED)), uri)


def _ids_of(content: bytes, place: str) -> frozenset[str]:
    return frozenset(row["id"] for row in excluded_rows(content, place))


def _digests(manifest: Manifest) -> dict[str, str]:
    """File of a corpus -> digest of its texts, or of the file."""
    return {name: manifest.contents.get(name, str(entry["sha256"])) for name, entry in manifest.files.items()}


def _stem(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[0]


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

        def cut_into_blocks(first: int, end: int) -> Iterator[Span]:
            some = shards[first:end]
            # Without sources the sequences are those of all documents together, as they always were.
            most = BLOCK_TOKENS if has_sources else sum(shard.tokens for shard in some)
            return spans_of(some, first, most)

        spans = self.champion.spans(length) if self.champion else cut_into_blocks(0, num)
        early = [replace(span, is_earlier=True) for span in spans]
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
