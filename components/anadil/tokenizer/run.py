"""corpus -> tokenizer: make the candidates, measure each on held-out text, pass one on.

Run: python -m anadil.tokenizer --recipe R --corpus URI --out URI
"""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from anadil.artifacts.base_model import base_tokenizer, read_tokenizer
from anadil.artifacts.base_vocabulary import base_settings, read_base, require_changeable
from anadil.core.errors import DataError, IntegrityError
from anadil.core.progress import track
from anadil.recipe.sections import Strategy
from anadil.runtime.job import Figures, Job
from anadil.runtime.planned_artifact import reusable_artifact
from anadil.text import metrics
from anadil.text.corpus import read_corpora
from anadil.text.cut_patterns import to_text
from anadil.text.encoder import Encoder
from anadil.text.language import load_language
from anadil.text.pieces import adds_blank
from anadil.tokenizer import select
from anadil.tokenizer.candidate import (
    TokenizerCandidate,
    chat_template,
    vocab_size,
    write_embedding_map,
    write_tokenizer,
)
from anadil.tokenizer.corpus_counts import corpus_counts
from anadil.tokenizer.fertility import (
    DIGITS,
    Fertility,
    HeldoutSample,
    measure_fertility,
    read_keep_texts,
    sample_heldout,
    unchanged_share,
)
from anadil.tokenizer.makers import MAKERS, cuts_at_marks, mark_share, recut_base, require_room
from anadil.tokenizer.pretokens import count_texts, cutter_of
from anadil.tokenizer.surgery import MIN_SHARE, characters, lost_scripts, lost_text
from anadil.tokenizer.usage import SweepUsage, TokenUsage, usage_in
from anadil.tokenizer.word_counts import WordCounts

log = logging.getLogger(__name__)

COUNTS = (
    "train_documents", "train_pretokens", "different_pretokens", "dropped_pretokens", "pruned_pretokens",
)  # fmt: skip
"""Records of the corpus, which do not depend on the sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCandidates:
    """Candidates and counts that need not be made again."""

    candidates: Mapping[tuple[Strategy, int], TokenizerCandidate] = field(default_factory=dict)
    """Strategy and size asked for -> candidate."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Records of the corpus; empty where nothing was found."""
    base_usage: TokenUsage | None = None
    """Usage of the base's own tokenizer, which every run counts; None if nothing was reused."""


def find_sweep_candidates(job: Job) -> SweepCandidates:
    """The candidates of a job that lie under `storage.root` already."""
    sizes = job.recipe.tokenizer.sizes
    if len(sizes) < 2:
        return SweepCandidates()
    candidates: dict[tuple[Strategy, int], TokenizerCandidate] = {}
    counts: dict[str, int] = {}
    base_usage: TokenUsage | None = None
    for size in sizes:
        settings = job.recipe.tokenizer.model_copy(update={"vocab_sizes": (size,)})
        artifact = reusable_artifact(job, "tokenizer", job.recipe.model_copy(update={"tokenizer": settings}))
        if artifact is None:
            continue
        folder, manifest = artifact
        table = json.loads((folder / "fertility.json").read_text(encoding="utf-8"))["candidates"]
        for name, entry in table.items():
            strategy, asked, place = entry["strategy"], entry["asked"], folder / "candidates" / name
            if strategy != "base":
                tokenizer = read_tokenizer(place if place.is_dir() else folder)
                candidates[strategy, asked] = TokenizerCandidate(
                    strategy=strategy,
                    asked=asked,
                    got=entry["got"],
                    tokenizer=tokenizer,
                    usage=usage_in(entry),
                )
        # Equal in all of them: neither depends on the sizes.
        base_usage = usage_in(table["base"])
        counts = {name: manifest.records[name] for name in COUNTS if name in manifest.records}
        log.info("size %d: taken from a run of its own", size)
    return SweepCandidates(candidates=candidates, counts=counts, base_usage=base_usage)


WORDS_PER_LOOK = 10_000  # Words after which the stage checks if it is to stop


def run(job: Job) -> Figures:
    """Fill `job.out` with the chosen tokenizer, its fertility and its embedding map."""
    recipe = job.recipe
    folder = base_tokenizer(recipe.base, job.base_cache)
    base = read_base(folder)
    language = load_language(recipe.language)
    heldout = sample_heldout(
        read_corpora(job.of_sources("corpus").values(), "heldout"), language, read_keep_texts(job)
    )
    if language.word_note:
        log.info("%s", language.word_note)
    candidates = _Candidates(job, base, heldout)
    measure = _Measure(job, candidates.base, heldout)
    measured = [measure(candidate) for candidate in candidates]
    if not measured:
        raise DataError(
            f"tokenizer: the corpus uses no new token {recipe.tokenizer.min_uses} times, so tokenizer.vocab_sizes: auto "
            "has no candidate; give more text, name sizes, or add base to tokenizer.strategies"
        )
    choice = select.choose_candidate(measured, measure.base, recipe.tokenizer)
    best = choice.best
    if text := best.lost_warning:
        log.warning("%s", text)
    _write(job, measured, best, base, folder)
    encoder = candidates.check_encoder(best.candidate)
    select.write_tables(job.out, measure.base, measured, choice, heldout, language.code, encoder)
    select.write_choice(job.out, measured, choice, recipe.tokenizer, measure.compute)
    beside = [file.relative_to(job.out).as_posix() for file in job.out.rglob("*") if file.is_file()]
    job.varying.extend(sorted(name for name in beside if "/" in name or name in select.TABLES))
    texts = sum(len(domain.texts) for domain in heldout.domains)
    job.records.update(
        heldout_documents=texts, heldout_words=heldout.num_words, heldout_bytes=heldout.num_bytes
    )
    return {
        "strategy": best.candidate.strategy,
        "vocab_size": best.candidate.vocab_size,
        "fertility": best.fertility.fertility,
        "base_fertility": measure.base.fertility.fertility,
        "bytes_per_token": best.fertility.bytes_per_token,
        "relative_cost": best.cost.relative,
    }


class _Candidates:
    """The candidates in the recipe's order; the corpus is counted once, each strategy trained once."""

    def __init__(self, job: Job, tokenizer: Tokenizer, heldout: HeldoutSample) -> None:
        self._job, self._tokenizer, self._heldout = job, tokenizer, heldout
        self._settings = job.recipe.tokenizer
        self._strategies = tuple(dict.fromkeys(self._settings.strategies))
        self._cutter = cutter_of(tokenizer)
        self._ready = SweepCandidates()
        if set(self._strategies) - {"base"}:
            require_changeable(tokenizer, job.recipe.base.model, self._settings)
            if "replace" in self._strategies:
                require_room(tokenizer, self._settings.sizes)
            self._ready = find_sweep_candidates(job)
            job.records.update(self._ready.counts)

    @cached_property
    def base(self) -> TokenizerCandidate:
        """The base's own tokenizer."""
        size = vocab_size(self._tokenizer)
        usage = self._ready.base_usage
        if usage is None and set(self._strategies) - {"base"}:
            sweep = SweepUsage(self._tokenizer, self._counts, min_uses=self._settings.min_uses)
            usage = sweep.of(self._tokenizer, 0)
        return TokenizerCandidate(
            strategy="base", asked=size, got=size, tokenizer=self._tokenizer, usage=usage
        )

    def __iter__(self) -> Iterator[TokenizerCandidate]:
        sizes, ready = self._settings.sizes, self._ready.candidates
        for strategy in self._strategies:
            if strategy == "base":
                yield self.base
                continue
            missing = tuple(size for size in sizes if (strategy, size) not in ready)
            made: Iterator[TokenizerCandidate] = iter(())
            if missing or not sizes:
                base, counts = self._cut_for(strategy)
                made = MAKERS[strategy](base, counts, missing, self._settings, self._keep_counts)
            if not sizes:
                yield from made
            for size in sizes:
                # Surgery makes none where the base has nothing to exchange.
                if candidate := ready.get((strategy, size)) or next(made, None):
                    yield candidate

    def check_encoder(self, chosen: TokenizerCandidate) -> select.EncoderCheck | None:
        """Compare the fast encoder with `tokenizers` on every different word of the corpus, up to the first difference.

        Training encodes by it, and compares a sample of its documents only.

        Returns:
            `fast`: True if there is a fast way for this tokenizer, and it gives the same ids; `compared_words`;
            `difference`: the word that it encodes otherwise, or empty. None for the base alone: no words are counted.
        """
        if not set(self._strategies) - {"base"}:
            return None
        _, table = self._cut_for(chosen.strategy)
        encoder, num_words = Encoder(chosen.tokenizer), 0

        def words() -> Iterator[str]:
            nonlocal num_words
            for word in track(map(to_text, table.pretokens()), "comparing encoders", len(table)):
                if num_words % WORDS_PER_LOOK == 0:
                    self._job.stop.check()
                num_words += 1
                yield word

        encoder.check(words())
        return {"fast": encoder.is_fast, "compared_words": num_words, "difference": encoder.difference}

    def _cut_for(self, strategy: Strategy) -> tuple[Tokenizer, WordCounts]:
        self._has_marks  # noqa: B018  said whichever strategy is tried
        return self._recut if strategy == "replace" else (self._tokenizer, self._counts)

    @cached_property
    def _counts(self) -> WordCounts:
        return corpus_counts(self._job, self._cutter)

    @cached_property
    def _recut(self) -> tuple[Tokenizer, WordCounts]:
        recut = recut_base(self._tokenizer, has_marks=self._has_marks)
        return recut, self._counts if recut is self._tokenizer else corpus_counts(self._job, recut)

    @cached_property
    def _has_marks(self) -> bool:
        """True if the corpus writes combining marks. The log says so if the base cuts words at them."""
        share = mark_share(characters(self._counts.items()))
        if (
            share < MIN_SHARE
            or self._cutter is not self._tokenizer
            or not cuts_at_marks(recut_base(self._tokenizer))
        ):
            return share >= MIN_SHARE
        log.info(
            "%.1f %% of the corpus's letters are combining marks (\\p{M}: vowel signs, accents), and the base's expression "
            "cuts words at them; replace takes Qwen 3.5's, which keeps them with their letters and cuts digits one by one",
            100 * share,
        )
        if {"extend", "surgery"} & set(self._strategies):
            log.warning(
                "extend and surgery keep the base's expression: no token of theirs can hold a letter with its combining "
                "mark, whatever the corpus; compare replace"
            )
        return True

    @cached_property
    def _keep_counts(self) -> Mapping[str, int]:
        # A vocabulary of pieces sets a space before a text.
        first = " " if adds_blank(json.loads(self._tokenizer.to_str())) else ""
        texts = [first + text for sample in self._heldout.keep for text in sample.seen]
        # Letters of all documents count: whether a script is in use is not measured.
        texts += ["\n".join(sorted(set("".join(sample.unseen)))) for sample in self._heldout.keep]
        return dict(count_texts(self._cutter, texts).items())


class _Measure:
    """Measures candidates on one text and for one model, and checks what they give back."""

    def __init__(self, job: Job, base: TokenizerCandidate, heldout: HeldoutSample) -> None:
        self.compute: select.ModelCompute = select.model_compute(job.recipe)
        self._job, self._heldout, self._base = job, heldout, base.tokenizer
        fertility = self._fertility(base)
        self._unit = (fertility.mean_fertility, base.vocab_size)
        altered, documents = fertility.altered_documents, sum(len(each.texts) for each in heldout.domains)
        # Every later comparison would refuse such a base, after training.
        if metrics.scores_other_text(len(altered), documents):
            raise DataError(
                f"base.model: its tokenizer gives {len(altered)} of {documents} held-out documents back as another text "
                f"(first: number {altered[0]}), so bits per byte would count other text than is scored; choose a "
                "base.model whose tokenizer gives back what it reads"
            )
        self.base = self._with_cost(base, fertility)

    def __call__(self, candidate: TokenizerCandidate) -> select.MeasuredCandidate:
        # The base was measured first, as the unit of all costs.
        is_base = candidate.strategy == "base"
        item = self.base if is_base else self._with_cost(candidate, self._fertility(candidate))
        if changed := item.fertility.changed_documents:
            words = (
                f"tokenizer {candidate.name}: {len(changed)} held-out documents decode to another text "
                f"(first: number {changed[0]})"
            )
            # The base may lose text, because it does so anyway.
            if not is_base:
                raise IntegrityError(
                    f"{words}; the base's tokenizer settings lose text, choose another base.model"
                )
            log.warning("%s; this base's tokenizer loses text", words)
        _track(item, self._job)
        if text := item.warning:
            log.warning("%s", text)
        return item

    def _fertility(self, candidate: TokenizerCandidate) -> Fertility:
        return measure_fertility(candidate.tokenizer, self._heldout, candidate.name, self._job.recipe.context)

    def _with_cost(self, candidate: TokenizerCandidate, fertility: Fertility) -> select.MeasuredCandidate:
        rows = candidate.num_rows(self._job.recipe.tokenizer.pad_to)
        cost = select.cost_of(fertility.mean_fertility, rows, self._unit, self.compute)
        unchanged = {
            each.name: unchanged_share(self._base, candidate.tokenizer, each.unseen or each.texts)
            for each in self._heldout.keep
        }
        return select.MeasuredCandidate(
            candidate=candidate,
            fertility=fertility,
            cost=cost,
            unchanged={name: round(share, DIGITS) for name, share in unchanged.items()},
            unseen={each.name: len(each.unseen) for each in self._heldout.keep},
            lost={} if candidate.strategy == "base" else lost_scripts(self._base, candidate.tokenizer),
        )


def _track(item: select.MeasuredCandidate, job: Job) -> None:
    fertility, name = item.fertility, item.candidate.name
    log.info(
        "%s: vocabulary %d, fertility %.3f (mean over %d domains %.3f), %.2f bytes per token, %.3f of the base's compute "
        "per word",
        name, item.candidate.vocab_size, fertility.fertility, len(fertility.domains), fertility.mean_fertility,
        fertility.bytes_per_token, item.cost.relative,
    )  # fmt: skip
    for text, share in item.unchanged.items():
        unseen = item.unseen[text]
        of = f"{unseen} documents that it was not made with" if unseen else "the text it was made with"
        log.info("%s: %.1f %% of %s (%s) are cut as by the base", name, 100 * share, text, of)
    if item.lost:
        log.info("%s: lacks tokens of the base: %s", name, lost_text(item.lost))
    job.tracker.metrics(
        {
            f"{item.candidate.strategy}_fertility": fertility.fertility,
            f"{item.candidate.strategy}_bytes_per_token": fertility.bytes_per_token,
        },
        step=item.candidate.vocab_size,
    )


def _write(
    job: Job, measured: list[select.MeasuredCandidate], best: select.MeasuredCandidate, base: Tokenizer,
    base_folder: Path,
) -> None:  # fmt: skip
    settings, template = base_settings(base_folder, base), chat_template(base_folder, base)
    targets = [(job.out / "candidates" / item.candidate.name, item) for item in measured]
    # A folder of its own, because `write_tokenizer` makes the folder that it fills.
    draft = job.out / "chosen"
    for target, item in [*(targets if len(targets) > 1 else ()), (draft, best)]:
        write_tokenizer(item.candidate, base_folder, settings, template, target)
        write_embedding_map(item.candidate, base, target, job.recipe.tokenizer.pad_to)
    for file in sorted(draft.iterdir()):
        shutil.move(file, job.out / file.name)
    draft.rmdir()
