"""The word-count table of a corpus: counted once, one table for each of its files, and stored.

Below `storage.root` it is an artifact, `counts`. Every later run on the corpus that cuts texts in the same way reuses it,
whatever strategies and sizes it tries.
"""

import json
import logging
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tokenizers import Tokenizer
from tokenizers.models import BPE

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import AlreadyThereError, join
from anadil.core.errors import IntegrityError, PreflightError
from anadil.core.processes import die_with
from anadil.core.progress import track
from anadil.runtime.job import Job
from anadil.runtime.threads import check_shared_locks, num_cores
from anadil.text.corpus import document_files, read_file
from anadil.tokenizer.pretokens import DOCUMENTS, MAX_PRETOKEN_BYTES, TOO_LONG, count_texts, require_words
from anadil.tokenizer.word_counts import WordCounts, read_counts, sum_counts, write_counts

log = logging.getLogger(__name__)

KIND = "counts"
TABLE = "words.counts"
VERSION = "1"
"""Raised with each change after which the same corpus gives another table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask:
    """One file of a corpus to count."""

    file: Path
    table: Path
    """File to write."""
    cutter: str
    """A tokenizer, as its library writes it."""


def corpus_counts(job: Job, tokenizer: Tokenizer) -> WordCounts:
    """The table of the train documents of a job's corpora: of each the stored one, or counted now and stored."""
    return _pruned(
        job, sum_counts(_table_of(job, each, tokenizer) for each in job.of_sources("corpus").values())
    )


def _table_of(job: Job, folder: Path, tokenizer: Tokenizer) -> WordCounts:
    corpus = artifact.read_manifest(str(folder))
    if job.recipe.storage.root is None or corpus is None:
        return _counted(job, folder, tokenizer, "counts")
    # A table for each corpus, so that a source that changed is counted alone.
    origin = counts_origin(corpus, tokenizer)
    uri = join(str(job.recipe.storage.root), KIND, artifact.origin_key(origin))
    table = _stored(uri, origin)
    if table is None:
        table = _counted(job, folder, tokenizer, f"counts-{artifact.origin_key(origin)}")
        _store(job, uri, origin, table)
    return table


def counts_origin(corpus: Manifest, tokenizer: Tokenizer) -> dict[str, str]:
    """Everything that decides the table."""
    content = json.loads(tokenizer.to_str())
    return {
        KIND: VERSION,
        "input corpus": corpus.digest,
        "normalizer": json.dumps(content.get("normalizer"), sort_keys=True),
        "pre_tokenizer": json.dumps(content.get("pre_tokenizer"), sort_keys=True),
        "longest pretoken": str(MAX_PRETOKEN_BYTES),
    }


def count_part(task: PartTask) -> None:
    """Write the table of one file of a corpus, unless it is there and complete."""
    if task.table.is_file():
        try:
            read_counts(task.table)
        except IntegrityError as error:
            log.warning("%s; counting again", error)
        else:
            return
    texts = (document.text for document in read_file(task.file))
    write_counts(count_texts(Tokenizer.from_str(task.cutter), texts), task.table)


def _counted(job: Job, corpus: Path, tokenizer: Tokenizer, name: str) -> WordCounts:
    """Count every file, in as many processes as the recipe says; what a killed run has counted stays."""
    folder = job.work / name
    if name == "counts":
        shutil.rmtree(folder, ignore_errors=True)  # nothing says of which corpus they are
    folder.mkdir(parents=True, exist_ok=True)
    # It cuts texts without the vocabulary, which takes long to read.
    cutter = Tokenizer(BPE())
    if tokenizer.normalizer is not None:
        cutter.normalizer = tokenizer.normalizer
    cutter.pre_tokenizer = tokenizer.pre_tokenizer
    tasks = [
        PartTask(file=file, table=folder / f"{file.name}.counts", cutter=cutter.to_str())
        for file in document_files(corpus, "train")
    ]
    for _ in track(
        _count_all(tasks, job.recipe.tokenizer.workers or num_cores()), "counting words", len(tasks)
    ):
        job.stop.check()
    table = sum_counts(read_counts(task.table) for task in tasks)
    shutil.rmtree(folder)
    return table


def _count_all(tasks: list[PartTask], num_workers: int) -> Iterator[None]:
    num_workers = min(num_workers, len(tasks))
    if num_workers <= 1:
        yield from map(count_part, tasks)
        return
    check_shared_locks()
    # Not by fork: the tokenizers library has threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_workers, context, initializer=die_with, initargs=(os.getpid(),))
    try:
        for done in as_completed([pool.submit(count_part, task) for task in tasks]):
            yield done.result()
    except BrokenProcessPool:
        raise PreflightError(
            "tokenizer: a process that counts words was killed; look for what kills it (the machine's kernel log "
            f"tells of memory), or set tokenizer.workers lower ({num_workers})"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _stored(uri: str, origin: dict[str, str]) -> WordCounts | None:
    manifest = artifact.read_manifest(uri)
    if manifest is None:
        return None
    # The key is a hash of the origin, so another origin there means damage or a stranger's file.
    if manifest.kind != KIND or manifest.origin != origin:
        raise IntegrityError(
            f"{uri}: holds a {manifest.kind} that was made from something else; {artifact.remedy_of(uri)}"
        )
    folder, _ = fetch(uri, KIND)
    log.info("word counts: reused %s", uri)
    return read_counts(folder / TABLE)


def _store(job: Job, uri: str, origin: dict[str, str], table: WordCounts) -> None:
    """Make the artifact; the first one stays if two runs do so at the same time."""
    # A rename needs the same file system, and another run a name of its own.
    draft = Path(f"{job.work / KIND if '://' in uri else uri}.partial-{uuid4().hex[:8]}")
    draft.mkdir(parents=True)
    try:
        write_counts(table, draft / TABLE)
        records = {**table.records, "train_pretokens": table.total, "different_pretokens": len(table)}
        artifact.seal(draft, kind=KIND, origin=origin, records=records)
        storage.store(uri).put_directory(draft, uri)
        log.info("word counts: kept in %s", uri)
    except AlreadyThereError:
        log.info("word counts: another run has kept them in %s", uri)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _pruned(job: Job, table: WordCounts) -> WordCounts:
    least = job.recipe.tokenizer.min_word_count
    chosen = table.pruned(least) if least > 1 else table
    require_words(chosen)
    # Those of the base's own cut, which comes first, whatever other ones follow.
    records = {
        DOCUMENTS: table.records.get(DOCUMENTS, 0),
        "train_pretokens": table.total,
        "different_pretokens": len(table),
        TOO_LONG: table.records.get(TOO_LONG, 0),
    }
    if least > 1:
        records["pruned_pretokens"] = len(table) - len(chosen)
        log.info("left out %d of %d different words that occur less than %d times",
                 len(table) - len(chosen), len(table), least)  # fmt: skip
    for name, value in records.items():
        job.records.setdefault(name, value)
    return chosen
