"""Make a corpus of raw files: plan shards, map each, find duplicates, write the files of the corpus.

Nothing depends on the order of the inputs, on the shards or on who works on them: shards follow the names of
the files, documents are sorted by the hash of their text, and of equal ones the same is kept.
"""

import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from anadil.artifacts import sealed_dir
from anadil.artifacts.hub_files import data_sets
from anadil.artifacts.local_directory import link
from anadil.clean.dedup.find_duplicates import KEPT, POOR, REASONS, Verdicts, find_duplicates
from anadil.clean.dedup.sorted_documents import Signatures
from anadil.clean.filters.clean_stats import SAMPLE_CHARS, SAMPLES, CleanStats, Row
from anadil.clean.filters.judge_record import BLOCKED, CONTAMINATED, PAGE_LIMITS, Settings
from anadil.clean.filters.pairs import REASONS as REASONS_OF_PAIRS
from anadil.clean.filters.pairs import refuse_mixed_up
from anadil.clean.filters.pii import knows_telephones
from anadil.clean.filters.user_filters import refuse_failures, refuse_many_reasons
from anadil.clean.read.input_kinds import check_suffixes
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.record_fields import ADDRESS_KEYS
from anadil.clean.read.warc import is_excused
from anadil.clean.shards.filter_trial import try_filters
from anadil.clean.shards.holdout import hold_out
from anadil.clean.shards.map_shard import map_shard
from anadil.clean.shards.quality_share import Ranking, drop_poor, score_of, tenths
from anadil.clean.shards.shared_sentences import num_shared, trim_shard, write_shared
from anadil.clean.shards.since import earlier_corpus, write_index
from anadil.clean.shards.workspace import Workspace
from anadil.clean.warm_kernels import warm_kernels
from anadil.clean.write.accounts import Accounts, limits_in_force, make_stats, write_samples
from anadil.clean.write.corpus_parts import (
    FILE_FACTS,
    CorpusFile,
    WriteTask,
    plan_files,
    renumbered,
    write_file,
)
from anadil.clean.write.row_files import ACCOUNTS, STATS, RowsTask, write_rows
from anadil.core.errors import DataError
from anadil.core.format import counted
from anadil.core.json_text import read_json, write_indented
from anadil.core.progress import progress
from anadil.core.stages import STAGES
from anadil.runtime.executor import Executor
from anadil.runtime.executors.engines import executor_of
from anadil.runtime.executors.processes import Processes
from anadil.runtime.job import Figures, Job, files_key
from anadil.text.language_data import Language
from anadil.text.language_id import second_identifier, siblings_of
from anadil.text.written import read_written

log = logging.getLogger(__name__)

PARTS = ("train", "heldout")
EXCERPT_CHARS = 300  # Length of the text of each tenth.
SHOWN, SHOWN_CHARS = 3, 200  # Samples in a message of what a base wrote.
NO_DOCUMENTS = "{key}: the files hold no document that can be read; check the paths and clean.text_field"
ONE_DOCUMENT = (
    "corpus has 1 document after cleaning, and one must be held out: {count:,} documents in, dropped: {dropped}; "
    "give more text"
)
ESCAPED = (
    "{}: line feeds, letters or tags stand there as a program writes them (`\\n`, `&uuml;`, `<br>`), beside others that are real, "
    "and were kept; where they are no text on programming, undo them before"
)
MENDED = {
    "turned": "%s had lines spelt backwards, in the order of a page (PDF); they were turned round",
    "respelled": "%s had letters in the code points of other languages; they became the language's own",
}
FORMATS = "fields of text that were no prose, of which the text was taken: %s"
SHARED = "%s sentences and lines that many documents of a host or file share were taken out of %s documents, such as %r (%s of %s)"
BEST = "clean.quality: %s is a score of %.4f and more: %s of %s documents, with %.1f%% of the words"
SIBLING = "%s was learnt without text of its sibling, CLD2's %s: text in that is kept as well; learn the pack with files of it as --bad"
SIBLINGS = (
    "CLD2 takes %s for a sibling of %s (%s); %s of them kept, where py3langid says otherwise: look at the others in "
    "rejected/language, and learn a pack where too much is lost (`anadil language learn`)"
)
NO_PAGES = (
    "{key}: {name} holds no web page in a record of type response, resource or conversion, and no text in one of type "
    "conversion; WAT files have neither: give the WARC files that they were made of"
)
NO_NATIONAL_TELEPHONES = (
    "clean.pii: national forms of telephones are not looked for in %s: only numbers with + or 00 and a country code, and those "
    "behind a word such as tel."
)
NO_ADDRESSES = "clean.url_lists: %s of %s records name no address, so that nothing can block them; keys that are looked for are such as %s"


def run(job: Job, executor: Executor | None = None) -> Figures:
    """Fill the corpus artifact."""
    started = time.perf_counter()
    written: dict[str, Any] = {}
    for place in job.inputs.values():  # text of the base, which is all that it may read of another stage
        raw, written = read_written(place)
        job = replace(job, files=raw)
    key = files_key(STAGES["clean"], job.recipe)
    settings = Settings(recipe=job.recipe)
    check_suffixes(
        job.files, key, is_pairs=bool(settings.language.sides), is_text=settings.recipe.clean.as_is
    )
    named_sets = data_sets(job.files)  # before hours of work, at the end of which the hub might not answer
    if settings.language.sibling:
        log.warning(SIBLING, settings.language.name, settings.language.sibling)
    since = job.recipe.clean.since
    earlier = earlier_corpus(since, settings, job) if since else None
    with executor or executor_of(job) as running:
        workspace = Workspace(job, running.num_workers, earlier)
        read_stats, clean_stats = _mapped(workspace, running, settings.language, key)
        _check_read(read_stats, clean_stats, settings)
        signatures = Signatures(workspace.shard_folders, workspace.held_folders)
        verdicts = _deduplicated(workspace, signatures, settings)
        if _trimmed(workspace, running, signatures, settings):
            read_stats, clean_stats, _ = _summed(workspace)
            signatures = Signatures(workspace.shard_folders, workspace.held_folders)
            verdicts = _deduplicated(workspace, signatures, settings)
        verdicts, quality = _ranked(workspace, signatures, verdicts, settings)
        _count_duplicates(workspace, signatures, verdicts, clean_stats, quality)
        _refuse_empty(signatures.num_documents, settings, clean_stats, read_stats.places, written)
        if not earlier and verdicts.count(KEPT) == 1:
            raise DataError(
                ONE_DOCUMENT.format(count=clean_stats.counts["documents_in"], dropped=clean_stats.summary())
            )
        heldout, heldout_counts = hold_out(workspace, signatures, verdicts, running, settings, earlier)
        files = plan_files(signatures, verdicts, heldout, earlier.num_files("train") if earlier else 0)
        if earlier:
            earlier.put_into(job)
        accounts = _write_output(files, job, workspace, running, signatures, settings)
    kept_samples = _kept_samples(workspace, signatures, verdicts)
    job.varying.extend(write_samples(job.out, clean_stats.samples(), kept_samples))
    num_index_files = len(earlier.index_files()) if earlier else 0
    job.varying.extend(write_index(job.out, signatures, verdicts, settings, num_index_files))
    bad = Counter[str]()
    for facts in workspace.facts():
        for file, read in zip(facts["files"], facts["read"], strict=True):
            bad[file] += read["bad"]
    stats = make_stats(settings, read_stats, clean_stats, files, job.records, accounts, bad, heldout_counts)
    stats |= {"data_sets": named_sets, "shared_sentences": _shared_json(workspace, clean_stats)}
    stats |= {"quality": quality} if quality else {}
    stats |= dict.fromkeys(job.inputs, written)
    # Files of a part that come first; all counts are those of the files behind them.
    stats |= {"earlier_files": {part: earlier.num_files(part) for part in PARTS}} if earlier else {}
    write_indented(job.out / "stats.json", stats, 2)
    job.varying.append("stats.json")
    _say_counts(stats, clean_stats, settings)
    job.tracker.metrics({f"dropped/{reason}": count for reason, count in clean_stats.dropped.items()})
    job.tracker.metrics({f"seconds/{step}": value for step, value in clean_stats.seconds.items()})
    return {
        "documents_in": stats["in"],
        "kept": stats["kept"],
        # With `clean.since` also those of the earlier corpus.
        "train": job.records.get("train", 0),
        "heldout": job.records["heldout"],
        "words": stats["words_out"],
        "dropped": clean_stats.dropped.total(),
        "docs_per_s": round(stats["in"] / (time.perf_counter() - started), 1),
    }


def _say_counts(stats: Row, clean_stats: CleanStats, settings: Settings) -> None:
    log.info("%s documents in; dropped: %s", f"{stats['in']:,}", clean_stats.summary())
    for name, message in MENDED.items():
        if stats[name]:
            log.warning(message, counted(stats[name], "document"))
    if stats["siblings"]:
        language, num_kept = settings.language, f"{stats['siblings_kept']:,}"
        names = ", ".join(siblings_of(language))
        log.warning(SIBLINGS, counted(stats["siblings"], "document"), language.name, names, num_kept)
    if formats := stats["formats"]:
        log.info(FORMATS, ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in formats.items()))
    if (shared := stats["shared_sentences"])["sentences"]:
        first = shared["examples"][0]
        log.info(
            SHARED, f"{shared['sentences']:,}", f"{shared['documents']:,}", first["text"], f"{first['documents']:,}",
            first["host"],
        )  # fmt: skip
    if stats["escaped"]:
        log.warning(ESCAPED.format(counted(stats["escaped"], "document")))


def _mapped(
    workspace: Workspace, executor: Executor, language: Language, key: str
) -> tuple[ReadStats, CleanStats]:
    """Clean all shards, and sum what they counted."""
    tasks = workspace.map_tasks()
    if tasks and isinstance(executor, Processes):
        # Copies of this process have them at once. Each would load them for itself, 1 s of CPU with numba.
        warm_kernels()
        if len(tasks) > 1 and language.second_label:
            second_identifier()
    if tasks and tasks[0].recipe.clean.filters and not workspace.num_done():
        try_filters(tasks)
    with progress("shards", len(tasks)) as bar:
        while tasks:
            executor.map(map_shard, tasks, lambda: bar.advance(workspace.num_done() - bar.done))
            tasks = workspace.correct_cuts()
    read_stats, clean_stats, warc = _summed(workspace)
    without = [name for name, each in warc.items() if ".warc" in name.lower() and not each.total()]
    if not clean_stats.counts["documents_in"] and not read_stats.bad:
        raise DataError((NO_PAGES if without else NO_DOCUMENTS).format(key=key, name=(*without, "")[0]))
    refuse_many_reasons(clean_stats.dropped)
    for name in without:
        log.warning(NO_PAGES.format(key=key, name=name))
    return read_stats, clean_stats


def _summed(workspace: Workspace) -> tuple[ReadStats, CleanStats, dict[str, Counter[str]]]:
    """Sum what the shards counted; and count the responses of each file."""
    read_stats, clean_stats = ReadStats(), CleanStats()
    warc: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for shard, facts, first_lines in zip(
        workspace.shards, workspace.facts(), workspace.first_lines(), strict=True
    ):
        for place, each in zip(shard.ranges, facts["read"], strict=True):
            part = ReadStats(**each)
            warc[place.name].update(responses=part.responses, damaged=part.damaged)
            part.places = [renumbered(why, first_lines) for why in part.places]
            read_stats.add(part)
        for row in (row for rows in facts["clean"]["samples"].values() for row in rows):
            row["source"] = renumbered(row["source"], first_lines)
        clean_stats.add(facts["clean"])
    read_stats.excused = sum(is_excused(**counts) for counts in warc.values())
    return read_stats, clean_stats, warc


def _check_read(read_stats: ReadStats, clean_stats: CleanStats, settings: Settings) -> None:
    """Refuse too many bad records; say what was read or looked for in part only."""
    clean, key = settings.recipe.clean, files_key(STAGES["clean"], settings.recipe)
    asked = clean_stats.counts["filtered"] + read_stats.failed
    refuse_failures(read_stats.failed, asked, read_stats.places)
    read_stats.check_bad_share(clean.max_bad_records)
    if settings.language.sides:
        refuse_mixed_up(clean_stats, settings.language.sides, key)
    unknown = read_stats.records - read_stats.addresses
    if unknown and clean.url_lists:
        log.warning(NO_ADDRESSES, f"{unknown:,}", f"{read_stats.records:,}", ADDRESS_KEYS)
    if read_stats.null_texts:
        log.warning("%s: text of %s is null: empty", key, counted(read_stats.null_texts, "record"))
    if cuts := read_stats.txt_documents:
        listed = ", ".join(f"{name} {count:,}" for name, count in sorted(cuts.items()))
        log.info("%s: .txt files by what is taken for a document of them: %s", key, listed)
    if unread := read_stats.columns_not_read:
        listed = ", ".join(f"{name} ({counted(count, 'file')})" for name, count in sorted(unread.items()))
        log.info("%s: columns that are not read: %s", key, listed)
    if clean.pii and not knows_telephones(settings.language.code):
        log.warning(NO_NATIONAL_TELEPHONES, settings.language.name)


def _deduplicated(workspace: Workspace, signatures: Signatures, settings: Settings) -> Verdicts:
    """Find the duplicates among the documents of all shards, unless that is done."""
    find = partial(find_duplicates, signatures, settings.minhash, only_exact=settings.recipe.clean.as_is)
    return Verdicts(sealed_dir.filled(workspace.dedup_folder, {"key": workspace.dedup_key}, find))


def _trimmed(workspace: Workspace, executor: Executor, signatures: Signatures, settings: Settings) -> bool:
    """Take sentences out that many documents of a host share; False where there are none."""
    if not settings.drops_shared:
        return False
    starts = signatures.starts[len(workspace.held_folders) : -1].tolist()
    verdicts, most = Verdicts(workspace.dedup_folder), settings.recipe.clean.max_shared
    write = partial(write_shared, workspace.shard_folders, starts, verdicts, most)
    if not num_shared(sealed_dir.filled(workspace.shared_folder, {"key": workspace.dedup_key}, write)):
        return False
    executor.map(trim_shard, workspace.trim_tasks())
    return True


def _ranked(
    workspace: Workspace, signatures: Signatures, verdicts: Verdicts, settings: Settings
) -> tuple[Verdicts, Row]:
    """Drop all but the best share of the words, if the recipe says so. Return the verdicts, and figures of the scores."""
    clean = settings.recipe.clean
    starts = signatures.starts[len(workspace.held_folders) : -1].tolist()
    ranking = Ranking(shards=tuple(workspace.shard_folders), starts=tuple(starts), verdicts=verdicts)
    num_documents, num_words = ranking.totals() if clean.quality_model else (0, 0)
    if not num_documents:
        return verdicts, {}
    quality: Row = {"documents": num_documents, "words": num_words, "tenths": tenths(ranking)}
    for each in quality["tenths"]:
        row = _row(each.pop("first"), workspace, signatures)
        each |= {"source": row["source"], "text": row["text"][:EXCERPT_CHARS]}
    if clean.best_share:
        (bound,) = ranking.bounds([clean.best_share], of_words=True)
        origin = {"key": workspace.dedup_key, "bound": str(bound)}
        verdicts = Verdicts(sealed_dir.filled(workspace.rank(), origin, partial(drop_poor, ranking, bound)))
        num_kept, words = replace(ranking, verdicts=verdicts).totals()
        quality |= {
            "share": clean.best_share, "threshold": score_of(bound), "kept": num_kept, "words_kept": words,
        }  # fmt: skip
        counts = f"{num_kept:,}", f"{num_documents:,}", 100 * words / max(1, num_words)
        log.info(BEST, clean.quality, quality["threshold"], *counts)
    return verdicts, quality


def _shared_json(workspace: Workspace, clean_stats: CleanStats) -> Row:
    """Return how many sentences went for what many documents share, of how many documents, and the most frequent ones."""
    examples: dict[str, Row] = {}
    for facts in workspace.facts():
        examples |= {key: each for key, each in facts.get("shared", {}).items() if key not in examples}
    ranked = sorted(examples.values(), key=lambda each: (-each["documents"], each["text"]))
    counts = clean_stats.counts
    return {"documents": counts["trimmed"], "sentences": counts["shared_sentences"], "examples": ranked}


def _count_duplicates(
    workspace: Workspace, signatures: Signatures, verdicts: Verdicts, clean_stats: CleanStats, quality: Row
) -> None:
    """Count what dedup and the share of the best dropped, with samples that say why."""
    for verdict, reason in REASONS.items():
        count = verdicts.count(verdict)
        for document in signatures.lowest_ids(partial(verdicts.has, verdict), SAMPLES):
            row = _row(document, workspace, signatures)
            if verdict == POOR:
                row |= {"limit": quality["threshold"]}
            else:
                row["duplicate_of"] = signatures.id_of(int(verdicts.duplicate_of[document]))
                # Documents that are alike, and how many of them stay.
                row |= {"value": max(2, int(verdicts.cluster_size[document])), "limit": 1}
            clean_stats.drop(reason, row)
            count -= 1
        if count:
            clean_stats.dropped[reason] += count


def _row(document: int, workspace: Workspace, signatures: Signatures) -> Row:
    row: Row = json.loads(signatures.line(document))
    first_lines = workspace.first_lines()[signatures.shard_of(document)]
    return {**row, "source": renumbered(row["source"], first_lines)}


def write_output(task: WriteTask | RowsTask) -> None:
    """Write a file of documents or of rows."""
    if isinstance(task, WriteTask):
        write_file(task)
    else:
        write_rows(task)


def _write_output(
    files: list[CorpusFile], job: Job, workspace: Workspace, executor: Executor, signatures: Signatures,
    settings: Settings,
) -> Accounts:  # fmt: skip
    """Write the kept documents, and a row for every one of the inputs, into the artifact; return the sums of the rows."""
    documents = workspace.write_tasks(files, signatures, max(1, len(settings.language.sides)))
    rows = workspace.rows_tasks(signatures, settings)
    # Together, because a small corpus has one file of each, and a worker would wait for the other.
    executor.map(write_output, [*documents, *rows])
    for task in documents:
        # A killed run finds the file again where it was made.
        link(task.folder / task.file.name, job.out / task.file.name)
        job.contents[task.file.name] = read_json(task.folder / FILE_FACTS)["digest"]
        job.records[task.file.part] = job.records.get(task.file.part, 0) + task.num_documents
    accounts = Accounts(settings.reported, limits_in_force(settings.limits_of_rules))
    for each in rows:
        link(each.folder / each.name, job.out / STATS / each.name)
        job.varying.append(f"{STATS}/{each.name}")
        accounts.add(read_json(each.folder / ACCOUNTS))
    return accounts


def _kept_samples(workspace: Workspace, signatures: Signatures, verdicts: Verdicts) -> list[Row]:
    # Ids follow from the hash of the text: the smallest are as good as drawn by lot.
    lowest = signatures.lowest_ids(lambda each: verdicts.is_kept(each) & ~signatures.is_held(each), SAMPLES)
    rows = (_row(document, workspace, signatures) for document in lowest)
    return [{**row, "text": row["text"][:SAMPLE_CHARS]} for row in rows]


def _refuse_empty(
    num_documents: int, settings: Settings, clean_stats: CleanStats, places: list[str],
    written: Mapping[str, Any],
) -> None:  # fmt: skip
    if not clean_stats.counts["documents_in"]:
        text = NO_DOCUMENTS.format(key=files_key(STAGES["clean"], settings.recipe))
        raise DataError(f"{text}; first: {places[0]}" if places else text)
    if num_documents:
        return
    code, min_words = settings.language.code, settings.limits["min_words"]
    remedies = {
        "language": f"check language ({code})",
        "short": f"lower clean.rules.min_words ({min_words})",
        CONTAMINATED: "give text that evaluate and finetune do not hold, or set clean.decontaminate to false",
        BLOCKED: "name hosts in clean.url_allow",
        PAGE_LIMITS: "give smaller pages, or their text as .txt or .jsonl",
    }
    remedies |= dict.fromkeys(REASONS_OF_PAIRS, "correct the files, or `pairs` of the source")
    most = clean_stats.dropped.most_common(1)[0][0]
    remedy = remedies.get(most, "widen clean.rules" if settings.has_rules else "check clean.text_field")
    remedy += ", or give more text" + ("" if settings.language.is_none else f" in {settings.language.name}")
    if written:
        samples = [row["text"][:SHOWN_CHARS] for rows in clean_stats.samples().values() for row in rows][
            :SHOWN
        ]
        remedy = (
            f"{written['base']} wrote {', '.join(map(repr, samples))}; name the language that it writes, or `none`, in the "
            "source's `language`, or give real text as `inputs` in place of written_by"
        )
    raise DataError(
        f"corpus is empty after cleaning: {counted(clean_stats.counts['documents_in'], 'document')} in, "
        f"dropped: {clean_stats.summary()}; {remedy}"
    )
