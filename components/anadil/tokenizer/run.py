"""corpus -> tokenizer: make the candidates, measure each on held-out text, pass one on.

Run: python -m anadil.tokenizer --recipe R --corpus URI --out URI
"""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from anadil.artifacts.base_model import base_tokenizer, read_tokenizer
from anadil.core.errors import IntegrityError, RecipeError
from anadil.core.progress import track
from anadil.recipe.sections import Strategy
from anadil.runtime.job import Figures, Job
from anadil.text.corpus import read_documents
from anadil.text.language import load_language
from anadil.tokenizer.candidate import (
    TokenizerCandidate,
    chat_template,
    extend_vocabulary,
    replace_vocabulary,
    require_byte_level,
    vocab_size,
    write_tokenizer,
)
from anadil.tokenizer.embedding_map import write_embedding_map
from anadil.tokenizer.extend_bpe import continue_merges
from anadil.tokenizer.fertility import measure_fertility, sample_heldout
from anadil.tokenizer.pretokens import Pretokens, count_pretokens
from anadil.tokenizer.select import TABLES, MeasuredCandidate, choose_candidate, write_tables
from anadil.tokenizer.sweep_reuse import SweepCandidates, find_sweep_candidates
from anadil.tokenizer.train_bpe import train_vocabulary
from anadil.tokenizer.usage import count_usage

log = logging.getLogger(__name__)

NUM_BYTE_SYMBOLS = 256


def run(job: Job) -> Figures:
    """Fill `job.out` with the chosen tokenizer, its fertility and its embedding map.

    Raises:
        RecipeError: A vocabulary is too small for the base's special tokens.
        DataError: The corpus is empty, or the base's tokenizer cannot be changed.
        IntegrityError: A candidate does not give the held-out text back.
    """
    recipe, corpus = job.recipe, job.inputs["corpus"]
    folder = base_tokenizer(recipe.base, job.base_cache)
    base = read_tokenizer(folder)
    language = load_language(recipe.language)
    heldout = sample_heldout((document.text for document in read_documents(corpus, "heldout")), language)
    base_measured = MeasuredCandidate(
        candidate=_unchanged(base),
        fertility=measure_fertility(base, heldout, "base"),
    )
    measured: list[MeasuredCandidate] = []
    for candidate in _candidates(job, base):
        if candidate.strategy == "base":
            measured.append(base_measured)
        else:
            fertility = measure_fertility(candidate.tokenizer, heldout, candidate.name)
            measured.append(MeasuredCandidate(candidate=candidate, fertility=fertility))
        _check_and_track(measured[-1], job)
        if text := measured[-1].warning:
            log.warning("%s", text)
    best, why = choose_candidate(measured, recipe)
    _write(job.out, measured, best, base, folder)
    write_tables(job.out, base_measured, measured, best, why, heldout, language.code)
    beside = [file.relative_to(job.out).as_posix() for file in job.out.rglob("*") if file.is_file()]
    job.varying.extend(sorted(name for name in beside if "/" in name or name in TABLES))
    job.records.update(
        heldout_documents=len(heldout.texts), heldout_words=heldout.num_words, heldout_bytes=heldout.num_bytes
    )
    return {
        "strategy": best.candidate.strategy,
        "vocab_size": best.candidate.vocab_size,
        "fertility": best.fertility.fertility,
        "base_fertility": base_measured.fertility.fertility,
        "bytes_per_token": best.fertility.bytes_per_token,
    }


def _candidates(job: Job, base: Tokenizer) -> Iterator[TokenizerCandidate]:
    """The candidates in the recipe's order; the corpus is counted once, each strategy trained once."""
    wanted = job.recipe.tokenizer
    strategies = tuple(dict.fromkeys(wanted.strategies))
    sizes = tuple(dict.fromkeys(wanted.vocab_sizes))
    ready, counts = SweepCandidates(), None
    if set(strategies) - {"base"}:
        require_byte_level(base, job.recipe.base.model)
        if "replace" in strategies:
            _require_room(base, min(sizes))
        ready = find_sweep_candidates(job)
        job.records.update(ready.counts)
    for strategy in strategies:
        if strategy == "base":
            yield _unchanged(base)
            continue
        missing = tuple(size for size in sizes if (strategy, size) not in ready.candidates)
        if missing and counts is None:
            counts = _counted(job, base)
        make = _extensions if strategy == "extend" else _replacements
        made = make(base, counts, missing, wanted.min_frequency) if missing and counts else iter(())
        for size in sizes:
            yield ready.candidates.get((strategy, size)) or next(made)


def _counted(job: Job, base: Tokenizer) -> Pretokens:
    texts = (document.text for document in read_documents(job.inputs["corpus"], "train"))
    counts = count_pretokens(base, track(texts, "counting words"))
    job.records.update(
        train_documents=counts.num_documents,
        train_pretokens=sum(counts.counts.values()),
        different_pretokens=len(counts.counts),
        dropped_pretokens=counts.num_too_long,
    )
    return counts


def _unchanged(base: Tokenizer) -> TokenizerCandidate:
    size = vocab_size(base)
    return TokenizerCandidate(strategy="base", asked=size, got=size, tokenizer=base)


def _extensions(
    base: Tokenizer, counts: Pretokens, sizes: tuple[int, ...], min_frequency: int
) -> Iterator[TokenizerCandidate]:
    merges = continue_merges(base, counts.counts, max(sizes), min_frequency)
    for size in sizes:
        got = _given("extend", size, min(size, len(merges)), min_frequency)
        tokenizer = extend_vocabulary(base, merges[:size])
        usage = count_usage(tokenizer, counts.counts, merges[:size])
        yield TokenizerCandidate(strategy="extend", asked=size, got=got, tokenizer=tokenizer, usage=usage)


def _replacements(
    base: Tokenizer, counts: Pretokens, sizes: tuple[int, ...], min_frequency: int
) -> Iterator[TokenizerCandidate]:
    num_special = len(base.get_added_tokens_decoder())
    log.info("training a vocabulary of %d tokens", max(sizes))
    trained = train_vocabulary(counts.counts, max(sizes) - num_special, min_frequency)
    for size in sizes:
        vocab, merges = trained.cut(size - num_special)
        tokenizer = replace_vocabulary(base, vocab, merges)
        got = _given("replace", size, vocab_size(tokenizer), min_frequency)
        usage = count_usage(tokenizer, counts.counts, merges, NUM_BYTE_SYMBOLS + num_special)
        yield TokenizerCandidate(strategy="replace", asked=size, got=got, tokenizer=tokenizer, usage=usage)


def _require_room(base: Tokenizer, size: int) -> None:
    num_special = len(base.get_added_tokens_decoder())
    least = NUM_BYTE_SYMBOLS + num_special
    if size < least:
        raise RecipeError(
            f"tokenizer.vocab_sizes: {size} is too small to replace this base's vocabulary; "
            f"{NUM_BYTE_SYMBOLS} bytes and {num_special} special tokens need at least {least}"
        )


def _given(strategy: Strategy, asked: int, got: int, min_frequency: int) -> int:
    """`got`, after a warning where it is less than asked for: no library says so."""
    if got < asked:
        log.warning(
            "%s: asked for %d tokens, the corpus gives %d (no other pair occurs %d times); "
            "give more text or smaller tokenizer.vocab_sizes",
            strategy, asked, got, min_frequency,
        )  # fmt: skip
    return got


def _check_and_track(item: MeasuredCandidate, job: Job) -> None:
    found = item.fertility
    name = item.candidate.name
    log.info(
        "%s: vocabulary %d, fertility %.3f, %.2f bytes per token",
        name, item.candidate.vocab_size, found.fertility, found.bytes_per_token,
    )  # fmt: skip
    job.tracker.metrics(
        {
            f"{item.candidate.strategy}_fertility": found.fertility,
            f"{item.candidate.strategy}_bytes_per_token": found.bytes_per_token,
        },
        step=item.candidate.vocab_size,
    )
    if not found.changed_documents:
        return
    words = (
        f"tokenizer {name}: {len(found.changed_documents)} held-out documents decode to another text "
        f"(first: number {found.changed_documents[0]})"
    )
    if item.candidate.strategy != "base":
        raise IntegrityError(f"{words}; the base's tokenizer settings lose text, choose another base.model")
    log.warning("%s; this base's tokenizer loses text", words)


def _write(
    out: Path, measured: list[MeasuredCandidate], best: MeasuredCandidate, base: Tokenizer, base_folder: Path
) -> None:
    """The chosen tokenizer at the top; with a choice to make, all of them below `candidates/`."""
    candidates = out / "candidates"
    template = chat_template(base_folder, base)
    for item in measured if len(measured) > 1 else ():
        target = candidates / item.candidate.name
        write_tokenizer(item.candidate, base_folder, template, target)
        write_embedding_map(item.candidate, base, target)
    draft = out / "chosen"
    write_tokenizer(best.candidate, base_folder, template, draft)
    write_embedding_map(best.candidate, base, draft)
    for file in sorted(draft.iterdir()):
        shutil.move(file, out / file.name)
    draft.rmdir()
