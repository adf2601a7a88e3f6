"""Makes an artifact of tokens: a shard for each file of the corpus, then packed sequences over them.

A finished shard is sealed in the work directory, so that a killed run resumes with the next one. Neither the number of
processes nor that of threads changes a byte.
"""

import errno
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from anadil.artifacts import artifact, local_directory, sealed_dir
from anadil.core.errors import DataError, PreflightError
from anadil.core.format import counted, human_bytes
from anadil.core.json_text import read_json
from anadil.core.progress import progress
from anadil.runtime.executor import Executor
from anadil.runtime.job import Copy
from anadil.runtime.threads import num_cores
from anadil.text.corpus import CorpusPart, document_files, read_file
from anadil.text.encoder import Encoder
from anadil.tokens import encode_file as files
from anadil.tokens.encode_file import FACTS, SHARD, EncodeTask, Frame, document_tokenizer
from anadil.tokens.settings import Settings
from anadil.tokens.shard_plan import ShardPlan, Span, cut, earlier_part, shard_plan, stem_of, write_block
from anadil.tokens.tensor_file import TensorFile
from anadil.tokens.tokens_file import BlockFacts, EarlierFacts, ShardFacts, TokensFacts, open_file

log = logging.getLogger(__name__)

Entries = dict[str, dict[str, str | int]]
"""File -> bytes and SHA-256, as in a manifest."""

SMALL_BYTES = 4 * 1024**2
"""Compressed text that one process encodes before others have started."""
MOST_THREADS = 16
"""Most threads of a process among several: the stack of each counts to the memory that the process may take."""
SAMPLE_CHARS = 1_000
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def make_tokens(
    settings: Settings, out: Path, work: Path, executor: Executor, copies: dict[str, Copy] | None = None
) -> tuple[TokensFacts, Entries]:
    """Fill `out`; return its facts, and the manifest entries of files whose digest is known.

    `copies`: files of the champion that S3 copies into the artifact, to be filled; None: they are put into `out`.
    """
    tokenizer, frame = document_tokenizer(settings.tokenizer)
    # The frame follows from the tokenizer, and from the program that reads it.
    origin = {**settings.origin, "frame": str(frame)}
    folder = work / f"shards-{artifact.origin_key(origin)}"
    known = (settings.tokenizer_digest, frame.begin, frame.end, frame.bos)
    earlier = earlier_part(
        settings.champion, settings.corpus, settings.excluded,
        lambda facts: (facts.tokenizer, facts.begin, facts.end, facts.bos) == known,
    )  # fmt: skip
    with room_for(folder, "the token ids of the corpus, about as many bytes as it has of text"):
        train, heldout = (_tasks(settings, frame, part, folder, origin) for part in ("train", "heldout"))
        plan = shard_plan(train, heldout, earlier, settings.max_tokens)
        _encode_plan(plan, settings.max_tokens, executor)
        entries: Entries = {}
        train_facts = [_shard(task, plan, out, entries) for task in plan.train]
        heldout_facts = [_shard(task, plan, out, entries) for task in plan.heldout]
        num_tokens = sum(shard.tokens for shard in train_facts)
        _refuse_empty(settings, num_tokens)
        spans = plan.spans(train_facts, settings.sequence_length, has_sources=bool(settings.source))
        blocks = _write_blocks(settings, frame, plan, spans, train_facts, out)
        if plan.champion:
            names = {shard.file: shard.file for shard in plan.stored.values()}
            names |= {
                span.stored.file: block.file for span, block in zip(spans, blocks, strict=True) if span.stored
            }
            entries |= plan.champion.put(names, out, work, copies)
    early_blocks = blocks[: sum(span.is_earlier for span in spans)]
    early_shards = train_facts[: sum(block.num_shards for block in early_blocks)]
    sample = _sample(settings.corpus)
    ids = Encoder(tokenizer).encode([sample])[0]
    facts = TokensFacts(
        source=settings.source, language=settings.language, corpus=settings.corpus_digest,
        tokenizer=settings.tokenizer_digest, begin=frame.begin, end=frame.end, bos=frame.bos,
        vocabulary=tokenizer.get_vocab_size(), sequence_length=settings.sequence_length,
        stream=plan.stream_digest(), documents=sum(shard.documents for shard in train_facts), tokens=num_tokens,
        bytes=sum(shard.bytes for shard in train_facts), sequences=sum(block.sequences for block in blocks),
        targets=sum(block.targets for block in blocks),
        left_out=_left_out(settings, train_facts), sample=(sample, tuple(ids.tolist())), train=tuple(train_facts),
        heldout=tuple(heldout_facts), blocks=tuple(blocks),
        earlier=EarlierFacts.of(early_shards, early_blocks),
    )  # fmt: skip
    facts.write(out)
    return facts, entries


def _refuse_empty(settings: Settings, num_tokens: int) -> None:
    if not num_tokens and settings.max_tokens is not None:
        raise DataError(
            f"sources.{settings.source}.max_tokens: {settings.max_tokens:,} are less than the first document has; "
            "raise it"
        )
    if not num_tokens:
        raise DataError(f"{settings.corpus}/train: holds no text; run clean with more data or milder rules")


def _tasks(
    settings: Settings, frame: Frame, part: CorpusPart, folder: Path, origin: Mapping[str, str]
) -> list[EncodeTask]:
    listed = document_files(settings.corpus, part)
    threads = max(1, num_cores() // max(1, len(listed)))
    return [
        EncodeTask(
            file=file,
            folder=folder / f"{part}-{file.name.partition('.')[0]}",
            tokenizer=settings.tokenizer,
            frame=frame,
            threads=threads if len(listed) == 1 else min(threads, MOST_THREADS),
            keeps_empty=part == "heldout",
            excluded=settings.excluded if part == "train" else None,
            reads_special=settings.reads_special,
            origin={**origin, "part": f"{part}/{file.name}"},
        )
        for file in listed
    ]


def _encode_plan(plan: ShardPlan, max_tokens: int | None, executor: Executor) -> None:
    """Make the shards that the champion has not; with a limit of tokens the plan loses the files behind it."""
    # With a limit the files follow each other, since only their tokens say when it is reached.
    if max_tokens is None:
        _encode(plan.unmade([*plan.train, *plan.heldout]), executor)
        return
    _encode(plan.unmade(plan.heldout), executor)
    if plan.champion:
        _encode(plan.unmade(plan.earlier), executor)
    else:
        plan.earlier = _encode_until(plan.earlier, max_tokens, executor)
    # The champion's part is a random sample already, so that the limit is that of the new text.
    plan.new = _encode_until(plan.new, max_tokens, executor)


def _encode(tasks: Sequence[EncodeTask], executor: Executor) -> None:
    with ThreadPoolExecutor(min(8, num_cores())) as pool:
        sound = [*pool.map(lambda each: sealed_dir.verify(each.folder, each.origin, once_a_boot=True), tasks)]
    if any(sound):
        log.info("%s of %s shards of tokens are there", sum(sound), len(sound))
    left = [tasks[number] for number in _in_turn(len(tasks)) if not sound[number]]
    if not left:
        return
    total = sum(task.file.stat().st_size for task in left)
    left[0].folder.parent.mkdir(parents=True, exist_ok=True)
    with progress("encoding the corpus, MB compressed", max(1, total // 10**6)) as bar:
        # A process of an executor may take some GiB only, too few for the threads of a large machine.
        if total < SMALL_BYTES or len(left) == 1:
            for task in left:
                files.encode_file(task)
        else:
            sizes = {task.folder: task.file.stat().st_size for task in left}

            def tick() -> None:
                for folder in [folder for folder in sizes if sealed_dir.exists(folder)]:
                    sizes.pop(folder)
                bar.advance((total - sum(sizes.values())) // 10**6 - bar.done)

            executor.map(files.encode_file_in_worker, left, tick)


def _encode_until(tasks: Sequence[EncodeTask], max_tokens: int, executor: Executor) -> list[EncodeTask]:
    """Do tasks until they have so many tokens; the last one is cut behind a whole document."""
    tokens = 0
    # As many at a time as there are workers: what lies behind the cut is encoded for nothing.
    for first in range(0, len(tasks), executor.num_workers):
        some = tasks[first : first + executor.num_workers]
        _encode(some, executor)
        for number, task in enumerate(some, first):
            room = max_tokens - tokens
            tokens += int(read_json(task.folder / FACTS)["tokens"])
            if tokens > max_tokens:
                last = cut(task, room)
                _encode([last], executor)
                return [*tasks[:number], last]
    return list(tasks)


def _in_turn(num: int) -> list[int]:
    """Order the shards so that each node of a training job begins at a place of its own."""
    # torchrun's names for nodes, which may share the work directory.
    machine = int(os.environ.get("GROUP_RANK", "0"))
    machines = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    first = machine * num // machines
    return [*range(first, num), *range(first)]


def _shard(task: EncodeTask, plan: ShardPlan, out: Path, entries: Entries) -> ShardFacts:
    """Put a shard into the artifact, unless the champion's goes there; return its facts."""
    if task.file in plan.stored:
        return plan.stored[task.file]
    facts = read_json(task.folder / FACTS)
    facts.pop("digest")
    file = f"{task.file.parent.name}/{stem_of(task)}.safetensors"
    # A link takes no room, and a killed run still has the shard where it was made.
    local_directory.link(task.folder / SHARD, out / file)
    manifest = artifact.read_manifest(str(task.folder))
    assert manifest is not None
    entries[file] = manifest.files[SHARD]
    return ShardFacts(file=file, **facts)


def _write_blocks(
    settings: Settings,
    frame: Frame,
    plan: ShardPlan,
    spans: Sequence[Span],
    shards: Sequence[ShardFacts],
    out: Path,
) -> list[BlockFacts]:
    stored = {shard.file for shard in plan.stored.values()}

    def opened(shard: ShardFacts) -> TensorFile:
        uri = plan.champion.uri if plan.champion and shard.file in stored else str(out)
        return open_file(uri, shard.file, shard.num_bytes, shard.crc32)

    blocks = []
    for number, span in enumerate(spans):
        file = f"blocks/block-{number:05}.safetensors"
        listed = shards[span.first_shard : span.first_shard + span.num_shards]
        block = span.stored or write_block(out / file, listed, opened, settings.sequence_length, frame.bos)
        blocks.append(replace(block, file=file, first_shard=span.first_shard, num_shards=span.num_shards))
    return blocks


def _left_out(settings: Settings, shards: Sequence[ShardFacts]) -> dict[str, int]:
    reasons = sum((Counter(shard.left_out) for shard in shards), Counter[str]())
    manifest = artifact.read_manifest(str(settings.corpus))
    known = manifest.records.get("train") if manifest else None
    if settings.max_tokens is not None and known is not None:
        reasons["max_tokens"] = known - sum(shard.documents for shard in shards) - reasons.total()
    left_out = {reason: count for reason, count in sorted(reasons.items()) if count}
    if left_out:
        listed = ", ".join(f"{reason} {count:,}" for reason, count in left_out.items())
        log.info("%s left out: %s", counted(sum(left_out.values()), "document"), listed)
    return left_out


def _sample(corpus: Path) -> str:
    texts = (document.text for file in document_files(corpus, "train") for document in read_file(file))
    return next((text[:SAMPLE_CHARS] for text in texts if text), "")


@contextmanager
def room_for(folder: Path, content: str) -> Iterator[None]:
    """Tell of a full disk what was to be written. Finished parts are kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        free = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.is_dir())).free
        raise PreflightError(
            f"{folder}: no space left for {content} ({human_bytes(free)} free); free some, or choose another "
            "storage.root or ANADIL_WORK, and run again: finished parts are kept"
        ) from None
