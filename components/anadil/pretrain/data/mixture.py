"""The packed text of a run, of one source or of several in the order of a schedule."""

import logging
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from anadil.artifacts import artifact, sealed_dir
from anadil.core.errors import DataError, IntegrityError
from anadil.core.stages import PIECES, STAGES
from anadil.estimate.mixture import Schedule, SourceSize, schedule_of, standing, usage_of
from anadil.estimate.text_use import TextPart, new_names, part_of, part_sizes
from anadil.model.load import document_ids, encode_text, load_tokenizer, window_bos
from anadil.pretrain.callback import Callback
from anadil.pretrain.data.batch import Batch, batch_of, sequences_at, sequences_of_step
from anadil.pretrain.state import State
from anadil.recipe.retrain import EARLIER
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import recipe_origin, split_shares
from anadil.runtime.executors.processes import Processes
from anadil.runtime.job import Job, word_of
from anadil.runtime.signals import Stop
from anadil.tokens.encode_file import document_tokenizer
from anadil.tokens.make_tokens import make_tokens
from anadil.tokens.packing import Packed, Sequences
from anadil.tokens.settings import Settings, settings_of
from anadil.tokens.stored_tokens import StoredTokens, open_tokens
from anadil.tokens.tokens_file import TokensFacts

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Sequences of all sources. Those of a source are numbered behind those of the source before."""

    sources: Mapping[str, Packed]
    """One under an empty name where the recipe has no sources."""
    schedule: Schedule | None = None
    """Order of the sources; None where the recipe has none, or before it is planned."""

    @property
    def names(self) -> tuple[str, ...]:
        """Sources of the recipe."""
        return tuple(name for name in self.sources if name)

    @property
    def first(self) -> Packed:
        """Text of the first source."""
        return next(iter(self.sources.values()))

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.first.length

    @property
    def num_documents(self) -> int:
        """Training documents."""
        return sum(each.stream.num_documents for each in self.sources.values())

    @property
    def num_sequences(self) -> int:
        """Sequences of one epoch of each source."""
        return int(self._ends[-1])

    @property
    def num_targets(self) -> int:
        """Predicted tokens of one epoch of each source."""
        return sum(each.num_targets for each in self.sources.values())

    @property
    def waste(self) -> float:
        """Share of positions that hold padding."""
        return sum(each.waste * each.num_sequences for each in self.sources.values()) / self.num_sequences

    def sequences_of_batch(self, batch: int, *, batch_size: int, seed: int) -> Sequences:
        """Choose the sequences of a batch (from 0) of the run."""
        if not self.names:
            return sequences_of_step(batch, batch_size=batch_size, blocks=self.first.blocks, seed=seed)
        assert self.schedule is not None
        places = [self.schedule.place_of(batch * batch_size + place) for place in range(batch_size)]
        source, position = np.array(places, dtype=np.int64).T
        chosen = np.empty(batch_size, dtype=np.int64)
        for number, packed in enumerate(self.sources.values()):
            here = source == number
            local = sequences_at(position[here], blocks=packed.blocks, seed=seed)
            chosen[here] = local + self._begins[number]
        return chosen

    def targets_by_source(self, sequences: Sequences) -> list[int]:
        """Predicted tokens of some sequences, by source."""
        numbers = self._source_numbers(sequences)
        return [
            packed.targets_of(sequences[numbers == number] - self._begins[number])
            for number, packed in enumerate(self.sources.values())
        ]

    def locate(self, sequence: int) -> tuple[str, int]:
        """Source of a sequence, and its number there."""
        number = int(self._source_numbers(np.array([sequence]))[0])
        return list(self.sources)[number], sequence - int(self._begins[number])

    def batch_of(self, sequences: Sequences, *, rows: int = 0) -> Batch:
        """Make the tensors of some sequences, and of padding up to `rows`; padding has no labels."""
        if not self.names:
            return batch_of(self.first, sequences, rows=rows)
        numbers, packs = self._source_numbers(sequences), list(self.sources.values())
        parts = []
        for number, group in groupby(range(len(sequences)), key=numbers.__getitem__):
            local = sequences[list(group)] - self._begins[number]
            parts.append(batch_of(packs[number], local))
        if padding := max(rows, len(sequences)) - len(sequences):
            parts.append(batch_of(self.first, sequences[:0], rows=padding))
        sources = np.zeros(len(sequences) + padding, dtype=np.int64)
        sources[: len(sequences)] = numbers
        return replace(joined(parts), sources=torch.from_numpy(sources))

    def _source_numbers(self, sequences: Sequences) -> Sequences:
        return np.searchsorted(self._ends, sequences, side="right")

    @cached_property
    def _ends(self) -> Sequences:
        return np.cumsum([each.num_sequences for each in self.sources.values()])

    @cached_property
    def _begins(self) -> Sequences:
        return np.concatenate([[0], self._ends[:-1]])


def only(packed: Packed) -> TrainingData:
    """The text of a recipe without sources."""
    return TrainingData(sources={"": packed})


def text_parts(recipe: Recipe, packed: Mapping[str, Packed]) -> list[TextPart]:
    """Parts of the text of a retraining, by the sources of its data."""
    return [part_of(name, recipe, each.num_sequences, each.num_targets) for name, each in packed.items()]


def sizes_of(
    recipe: Recipe, packed: Mapping[str, Packed], stands: Mapping[str, int] | None = None
) -> dict[str, SourceSize]:
    """Sizes that the order of training follows from, by source; `stands` are positions at the begin of a retraining."""
    if recipe.continues_champion:
        return part_sizes(recipe, recipe.pretrain, text_parts(recipe, packed), stands)
    return {
        name: SourceSize(
            sequences=each.num_sequences, targets=each.num_targets, max_epochs=recipe.sources[name].max_epochs
        )
        for name, each in packed.items()
    }


def joined(parts: list[Batch]) -> Batch:
    """Rows of several batches of one length, one after another."""
    sizes = [part.input_ids.numel() for part in parts]
    begins = np.cumsum([0, *sizes]).tolist()
    borders = [part.borders[:-1] + begin for part, begin in zip(parts, begins[:-1], strict=True)]
    return Batch(
        input_ids=torch.cat([part.input_ids for part in parts]),
        position_ids=torch.cat([part.position_ids for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        borders=torch.cat([*borders, torch.tensor(begins[-1:], dtype=torch.int32)]),
    )


def tokens_of(job: Job, source: str = "", *, write: bool) -> StoredTokens:
    """Open the tokens of a source, and make what is missing or damaged in the work directory where none were given.

    Nodes that share the work directory share the files of the corpus among themselves; other nodes encode all.

    `write` is True in one process of each node, which makes the tokens before the others read them.
    """
    if stream := job.streams.get(word_of(PIECES, source)):
        tokens = open_tokens(stream.uri, stream.manifest)
        _check_length(tokens, job.recipe.pretrain.sequence_length)
    else:
        recipe = job.recipe.of_source(source) if source else job.recipe
        settings = settings_of(job, recipe, STAGES["pretrain"], word_of("corpus", source))
        tokens = made_tokens(settings, job.work, job.stop, write=write)
    check_tokenizer(tokens.facts, tokens.uri, job.inputs["tokenizer"])
    return tokens


def made_tokens(settings: Settings, work: Path, stop: Stop, *, write: bool) -> StoredTokens:
    """Make tokens in a directory, and open them; see `tokens_of`."""
    # The frame follows from the tokenizer, and from the program that reads it.
    _, frame = document_tokenizer(settings.tokenizer)
    origin = {**settings.origin, "frame": str(frame), "length": str(settings.sequence_length)}
    # Blocks end where the champion's text does.
    origin |= {f"champion's {kind}": uri for kind, uri in settings.champion.items()}
    folder = work / f"tokens-{artifact.origin_key(origin)}"
    # Every byte is compared: a kill may have left a damaged file.
    if write and not sealed_dir.verify(folder, origin, once_a_boot=True):
        # Processes of their own: a copy of one that has threads may hang.
        with (
            Processes(may_fork=False, stop=stop) as executor,
            sealed_dir.create(folder, origin, socket.gethostname()) as draft,
        ):
            make_tokens(settings, draft, work, executor)
    manifest = artifact.read_manifest(str(folder))
    if manifest is None:
        raise DataError(f"{folder}: not there; each node's first process makes it in its work directory")
    return open_tokens(str(folder), manifest)


def check_tokenizer(facts: TokensFacts, uri: str, folder: Path) -> None:
    """Compare tokens with the tokenizer that the model gets."""
    if facts.tokenizer != (digest := artifact.digest_of(folder)):
        raise IntegrityError(
            f"{uri}: are tokens of the tokenizer {facts.tokenizer[:16]}, and {folder} is {digest[:16]}; give the "
            "tokenizer that they were made with, or run encode again"
        )
    tokenizer = load_tokenizer(folder)
    frame = (*document_ids(tokenizer, str(folder)), window_bos(tokenizer))
    text, ids = facts.sample
    if frame == (facts.begin, facts.end, facts.bos) and tuple(encode_text(tokenizer, text)) == ids:
        return
    raise IntegrityError(
        f"{folder}: transformers reads its tokenizer in another way than the tokenizers library, by which {uri} was "
        "encoded (other ids of a text, or other tokens round it); set tokenizer_class in tokenizer_config.json of "
        "base.model to PreTrainedTokenizerFast, and run again"
    )


def _check_length(tokens: StoredTokens, length: int) -> None:
    if tokens.facts.sequence_length != length:
        raise IntegrityError(
            f"{tokens.uri}: are packed for sequences of {tokens.facts.sequence_length:,} tokens, and "
            f"pretrain.sequence_length is {length:,}; run encode with the same recipe"
        )


class MixtureKeeper(Callback):
    """Plans the order of the sources before the first batch is made, and keeps what is past.

    Other shares, or more epochs, may come with a resume. The order before it stays, and each source goes on from where
    it stands, so that a later start makes the same batches again.
    """

    def __init__(self) -> None:
        self._schedule: Schedule | None = None
        self._sizes: Mapping[str, SourceSize] = {}
        self._origin: dict[str, str] = {}
        self.changes: list[dict[str, Any]] = []
        """Changes of shares so far: the first step with the new ones, and what changed."""
        self.begins: dict[str, int] = {}
        """Position of each part of the text where a retraining began; empty in any other training."""

    def pre_train(self) -> None:
        """Plan the whole run, or resume with the order of the checkpoint; raises as `schedule_of`."""
        run = self.training
        saved = run.state.mixture
        if run.job.recipe.continues_champion and run.is_branching:
            self._begin_week()
        else:
            self.begins = dict(saved.get("begins", {}))
        self._sizes = sizes_of(run.job.recipe, run.trainer.data.sources, self.begins)
        # The first start's shares name the work directory, by which a start with other ones finds it.
        shares = split_shares(recipe_origin(run.job.recipe, STAGES["pretrain"].keys))[1]
        self._origin = saved.get("origin", shares)
        if not saved or self._schedule is not None:
            self._plan_anew()
        else:
            before = TypeAdapter(Schedule).validate_python(saved["schedule"])
            begin = run.trainer.batch_of(run.state.step) * run.job.recipe.pretrain.batch_size
            self._use(before.with_names(tuple(self._sizes), begin))
            changes = differences(saved["shares"], shares_of(run.job.recipe))
            self.changes = list(saved["changes"])
            if changes:
                self.changes.append({"step": run.state.step + 1, "changes": changes})
                log.warning("from step %s on: %s", f"{run.state.step + 1:,}", "; ".join(changes))
            # A run that begins with a checkpoint of another one may have other phases, too.
            if changes or run.is_branching:
                self._plan_anew()
        if run.group.is_first:
            self._log_usage()

    def post_rollback(self) -> None:
        """Plan the order behind the batches that are skipped, so that phases begin with their own shares."""
        self._plan_anew()

    def pre_save(self, state: State) -> State:
        """Add the order, and the shares that it follows from."""
        assert self._schedule is not None
        mixture = {
            "shares": shares_of(self.training.job.recipe),
            "origin": self._origin,
            "schedule": asdict(self._schedule),
            "changes": self.changes,
            **({"begins": self.begins} if self.begins else {}),
        }
        return replace(state, mixture=mixture)

    def _plan_anew(self) -> None:
        run = self.training
        step = run.state.step
        batch = run.trainer.batch_of(step)
        settings = run.job.recipe.pretrain
        self._use(schedule_of(settings, self._sizes, step=step, batch=batch, before=self._schedule))

    def _begin_week(self) -> None:
        """Let earlier text go on where the champion's run stands, and new text begin: another week's had its name."""
        run = self.training
        state, names = run.state, tuple(run.trainer.data.sources)
        number = run.trainer.batch_of(state.step) * run.job.recipe.pretrain.batch_size
        stands = {EARLIER: number}  # of a run without sources, which has no schedule
        if saved := state.mixture.get("schedule"):
            before = TypeAdapter(Schedule).validate_python(saved)
            stands = dict(zip(before.names, before.positions(number), strict=True))
        new = new_names(run.job.recipe)
        self.begins = {name: 0 if name in new else stands.get(name, 0) for name in names}
        self._schedule = standing(names, self.begins, number)
        # Tokens by part are those of this run, as its passes are.
        run.state = replace(state, sources={})

    def _use(self, schedule: Schedule) -> None:
        self._schedule = schedule
        trainer = self.training.trainer
        trainer.data = replace(trainer.data, schedule=schedule)

    def _log_usage(self) -> None:
        recipe = self.training.job.recipe
        settings = recipe.pretrain
        if recipe.continues_champion:
            self._log_week()
            return
        for each in usage_of(settings, self._sizes, self._schedule):
            log.info(
                "%s: %s tokens in %s sequences; the run takes %.2f epochs of it",
                each.name, f"{self._sizes[each.name].targets:,}", f"{self._sizes[each.name].sequences:,}",
                each.epochs,
            )  # fmt: skip
            if each.exhausted_at is not None:
                log.warning(
                    "%s: its share would be %.2f epochs, and sources.%s.max_epochs is %s: from step %s on its share "
                    "goes to the other sources",
                    each.name, each.asked_epochs, each.name, self._sizes[each.name].max_epochs,
                    f"{each.exhausted_at:,}",
                )  # fmt: skip

    def _log_week(self) -> None:
        """Say how many steps the new text makes, and how often each part is read."""
        run, schedule = self.training, self._schedule
        assert schedule is not None
        settings, retrain = run.job.recipe.pretrain, run.job.recipe.retrain
        assert retrain is not None
        begin = run.state.branch.step if run.state.branch else 0
        log.info(
            "retraining: %s steps after step %s, by retrain.epochs %g and retrain.mix.new %g",
            f"{settings.steps - begin:,}", f"{begin:,}", retrain.epochs, retrain.mix.new,
        )  # fmt: skip
        used = schedule.positions(schedule.end)
        for (name, size), position in zip(self._sizes.items(), used, strict=True):
            end = schedule.exhausted.get(name)
            log.info(
                "%s: %s tokens in %s sequences; the run takes %.2f epochs of it%s",
                name, f"{size.targets:,}", f"{size.sequences:,}", (position - size.begin) / size.sequences,
                "" if end is None else f", and from step {end:,} on its share goes to the others",
            )  # fmt: skip


def shares_of(recipe: Recipe) -> dict[str, float]:
    """Everything of the recipe that may change at a resume, by key."""
    mixes = {
        f"pretrain.phases.{number}.{key}": mix
        for number, phase in enumerate(recipe.pretrain.phases)
        for key, mix in (("mix", phase.mix), ("anneal", phase.anneal))
        if mix
    }
    return {
        **{f"{key}.{name}": share for key, mix in mixes.items() for name, share in mix.items() if share},
        **{f"sources.{name}.max_epochs": source.max_epochs for name, source in recipe.sources.items()},
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Shares that differ, as `key old -> new`."""
    names = dict.fromkeys([*before, *now])
    return [
        f"{name} {before.get(name, 0):g} -> {now.get(name, 0):g}"
        for name in names
        if before.get(name, 0) != now.get(name, 0)
    ]
