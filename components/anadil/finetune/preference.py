"""Preference step: DPO by TRL's trainer teaches the finetuned model by pairs which answers are better.

It continues the first step: the same adapter, or all weights. So the artifact has the same form, one adapter on the
base. Checkpoints and reference lie in a directory of their own, and only the run that made them uses them again.
"""

import logging
import shutil
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import distributed as dist
from transformers import PreTrainedTokenizerFast
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from anadil.artifacts import artifact
from anadil.artifacts.chat_files import read_pairs, refuse_no_chats
from anadil.artifacts.uri import MANIFEST
from anadil.core.errors import DataError, PreflightError
from anadil.finetune import training
from anadil.finetune.encode import IGNORED_LABEL, Example, PairExample, audit, encode_pairs
from anadil.finetune.learning import adapter_config, load_for_training, take_adapter
from anadil.finetune.rows import (
    EvaluationQuestions,
    Fingerprints,
    RowWriter,
    fitting_length,
    log_dropped,
    rows_file,
)
from anadil.finetune.trainer import ChatLoader, FullBatches, SharedModel
from anadil.model.process_group import Group
from anadil.recipe.finetune import Preference
from anadil.runtime.cache_key import recipe_origin
from anadil.runtime.job import Figures, Job
from anadil.text.chats import DroppedChats, Pair, fingerprint, folded, split_of
from anadil.text.letters import letters_of

log = logging.getLogger(__name__)

LogProbabilities = NDArray[np.float64]
"""Chosen and rejected answer of each pair, in nats; shape (pairs, 2)."""
REFERENCE = ("ref_chosen_logps", "ref_rejected_logps")
"""TRL's names of their columns."""
HELDOUT = ("heldout_margin", "heldout_accuracy")
"""Names in the trainer's log."""
LOGGED = {
    "loss": "loss",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "reward_margin": "rewards/margins",
    "reward_accuracy": "rewards/accuracies",
    "reward_chosen": "rewards/chosen",
    "reward_rejected": "rewards/rejected",
    "logp_chosen": "logps/chosen",
    "logp_rejected": "logps/rejected",
    **{name: name for name in HELDOUT},
}
"""Our names of figures -> TRL's. Source: trl 1.16, dpo_trainer.py."""


class PairTrainer(SharedModel, DPOTrainer):  # type: ignore[misc]
    """A DPOTrainer for rows of `prompt_ids`, `chosen_ids`, `rejected_ids` and `pair`."""

    def __init__(
        self, *, batch_size: int, reference_of: Callable[[Callable[[], LogProbabilities]], LogProbabilities],
        rows: Dataset, **settings: Any,
    ) -> None:  # fmt: skip
        """Prepare to train; `reference_of` loads the reference of an earlier start, or computes and stores it by the given function."""
        self.batch_size, self.reference_of, self.rows = batch_size, reference_of, rows
        self.reference: LogProbabilities = np.zeros((0, 2))
        super().__init__(**settings)
        self.ref_model, self.precompute_ref_logps = None, True

    def _prepare_dataset(self, dataset: Dataset, *_: object) -> Dataset:
        """Return rows of ids as they are; TRL's preparation would read control words in a text as control tokens."""
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, *_: object) -> Dataset:
        """Compute nothing yet: the model is not where it is trained."""
        return dataset

    def _prepare_for_training(self, *given: Any, **more: Any) -> Any:
        """Compute the reference with the model as it will be trained: same devices, same precision."""
        prepared = super()._prepare_for_training(*given, **more)
        self.reference = self.reference_of(lambda: self.log_probabilities(self.rows))
        return prepared

    def log_probabilities(self, rows: Dataset) -> LogProbabilities:
        """Score each answer of some pairs; all processes take part."""
        computed = np.zeros((len(rows), 2))
        order = np.argsort(pair_lengths(rows), kind="stable")
        self.model.eval()
        for start in range(0, len(order), self.batch_size):
            batch = np.resize(order[start : start + self.batch_size], self.batch_size)
            part = np.array_split(batch, self.args.world_size)[self.args.process_index]
            sums = self._sums([rows[place] for place in part.tolist()])
            if self.args.world_size > 1:
                parts = [torch.empty_like(sums) for _ in range(self.args.world_size)]
                dist.all_gather(parts, sums)
                sums = torch.cat(parts)
            computed[batch] = sums.cpu().double().numpy()
        return computed

    def _sums(self, rows: list[dict[str, Any]]) -> torch.Tensor:
        inputs = self._prepare_inputs(self.data_collator(rows))
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        labels = ids.masked_fill(inputs["completion_mask"] == 0, IGNORED_LABEL)
        with torch.no_grad(), self.accelerator.autocast():
            output = self.model(
                input_ids=ids, attention_mask=mask, use_cache=False, labels=labels, fused_lm_head=True
            )
        return torch.stack(output.log_probs.float().sum(dim=1).chunk(2), dim=1)

    def get_train_dataloader(self) -> ChatLoader:
        """Return this process's part of every batch, with the reference of each pair."""
        lengths = pair_lengths(self.train_dataset).tolist()
        return self.length_loader(self.train_dataset, FullBatches, lengths, self._with_reference)

    def _with_reference(self, rows: list[dict[str, Any]]) -> Any:
        return self.data_collator(
            [row | dict(zip(REFERENCE, self.reference[row[PLACE]].tolist(), strict=True)) for row in rows]
        )

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Return the mean margin of rewards of held-out pairs, and the share whose chosen answer has the higher."""
        rows = self.eval_dataset
        gained = self.log_probabilities(rows) - self.reference[np.asarray(rows[PLACE])]
        margins = self.beta * (gained[:, 0] - gained[:, 1])
        metrics = dict(zip(HELDOUT, (float(margins.mean()), float((margins > 0).mean())), strict=True))
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def pair_lengths(rows: Dataset) -> NDArray[np.int64]:
    """Return the tokens of the longer chat of each pair, without its ids in memory."""
    table = rows.select_columns(list(IDS)).with_format("arrow")[:]
    counts = [
        np.concatenate([chunk.value_lengths().to_numpy(zero_copy_only=False) for chunk in table[name].chunks])
        for name in IDS
    ]
    lengths: NDArray[np.int64] = counts[0].astype(np.int64) + np.maximum(counts[1], counts[2])
    return lengths


KEY = "finetune.preference.inputs"
MAX_HELDOUT_PAIRS = 512
"""Pairs that only measure, with each checkpoint; chosen by us."""
IDS = ("prompt_ids", "chosen_ids", "rejected_ids")
PLACE = "pair"
"""Column of a row's number, by which its reference is found."""
SCHEMA = pa.schema([*((name, pa.list_(pa.int32())) for name in IDS), (PLACE, pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs to train and measure on; columns `prompt_ids`, `chosen_ids`, `rejected_ids` and `pair`, on disk."""

    rows: Dataset
    """All pairs; each one's `pair` is its place here."""
    train: Dataset
    heldout: Dataset
    """At most `MAX_HELDOUT_PAIRS` of the pairs whose question training never sees."""
    audit: dict[str, Any]
    """The part `preference` of `mask_audit.json`."""
    digest: str
    """Digest of all ids and their order, by which a checkpoint knows its pairs."""


def read_pair_rows(job: Job, settings: Preference, tokenizer: Any, asked: Fingerprints) -> Pairs:
    """Return every pair that can be trained on, as ids; log the others."""
    dropped = DroppedChats()
    path, fraction = rows_file(job, "pairs"), job.recipe.finetune.heldout_fraction
    heldout = array("b")
    with RowWriter(path, SCHEMA) as file:
        for pair, example in _encoded(job, settings, tokenizer, asked, dropped):
            row = {name: getattr(example, name) for name in IDS} | {PLACE: len(heldout)}
            file.write(row, str(row))
            heldout.append(split_of(pair.chosen, 0, fraction) == "heldout")
    refuse_no_chats(job.side_files.get(KEY, ()), len(heldout), dropped, "pairs")
    rows = Dataset.from_file(str(path))
    is_heldout = np.frombuffer(heldout, dtype=np.bool_)
    train = rows.select(np.flatnonzero(~is_heldout))
    measured = rows.select(np.flatnonzero(is_heldout)[:MAX_HELDOUT_PAIRS])
    log_dropped(len(heldout) + dropped.total, dropped, "pairs")
    if not len(train):
        raise DataError(
            f"pairs: of {len(heldout):,} none is left to train on; lower finetune.heldout_fraction ({fraction})"
        )
    # Both sides of each pair are audited like chats.
    sides: Any = _Sides(train)
    audited = audit(sides, tokenizer, dropped) | {"rows": len(train) + dropped.total, "kept": len(train)}
    return Pairs(rows=rows, train=train, heldout=measured, audit=audited, digest=file.digest.hexdigest())


def _encoded(
    job: Job, settings: Preference, tokenizer: Any, asked: Fingerprints, dropped: DroppedChats
) -> Iterator[tuple[Pair, PairExample]]:
    limit = fitting_length(job, "finetune.preference.max_length", settings.max_length)
    pairs = read_pairs(
        job.side_files.get(KEY, ()),
        dropped,
        columns=job.recipe.finetune.columns,
        letters=letters_of(job.recipe.language_code),
    )
    system = job.recipe.finetune.system_text
    unleaked = (
        Pair(chosen=pair.chosen.with_system(system), rejected=pair.rejected.with_system(system))
        for pair in _without_leaks(job, pairs, asked, dropped)
    )
    seen: set[int] = set()
    for pair, example in encode_pairs(tokenizer, unleaked, limit, dropped):
        key = fingerprint(f"{pair.chosen.id} {pair.rejected.id}")
        if key in seen:
            dropped.add("duplicate", pair.place)
            continue
        seen.add(key)
        yield pair, example


def _without_leaks(
    job: Job, pairs: Iterator[Pair], asked: Fingerprints, dropped: DroppedChats
) -> Iterator[Pair]:
    known, heldout = EvaluationQuestions(job), frozenset(asked.tolist())
    for pair in pairs:
        # Pairs whose first question is held out are set aside by its hash, see `split_of`.
        later = (fingerprint(folded(question)) for question in pair.chosen.questions[1:])
        if known.holds(pair.chosen) or known.holds(pair.rejected) or any(each in heldout for each in later):
            dropped.add("evaluation_question", pair.place)
        else:
            yield pair


class _Sides:
    def __init__(self, pairs: Dataset) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return 2 * len(self.pairs)

    def __iter__(self) -> Iterator[Example]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, place: int) -> Example:
        row = self.pairs[int(place) // 2]
        answer = row[IDS[1 + place % 2]]
        return Example(
            input_ids=row["prompt_ids"] + answer, labels=[IGNORED_LABEL] * len(row["prompt_ids"]) + answer
        )


PREFERENCE_CURVE = "preference.jsonl"
PREFERENCE_KEYS = "recipe finetune.preference"
"""Prefix of its keys in an origin."""
FOLDER = "preference"
"""Its part of the work directory."""
REFERENCE_FOLDER = "reference"
"""Directory below `FOLDER`."""
REFERENCE_KIND = "reference log-probabilities"
MEANS = ("loss", "reward_margin", "reward_accuracy", "reward_chosen", "reward_rejected")


def refuse_uneven(settings: Preference, processes: int) -> None:
    """Refuse a number of processes that does not divide the batch."""
    if settings.batch_size % processes:
        raise PreflightError(
            f"finetune.preference.batch_size: {settings.batch_size} pairs are not as many for each of {processes} "
            f"processes; set it to {processes * -(-settings.batch_size // processes)}"
        )


def prefer(
    job: Job, pairs: Pairs, tokenizer: PreTrainedTokenizerFast, finetuned: Path, origin: Mapping[str, str],
    processes: Group, device: torch.device,
) -> tuple[Path, Figures]:  # fmt: skip
    """Train the result of the first step on; return the newest checkpoint and the part of `training.json`."""
    settings = _settings(job)
    work = replace(job, work=job.work / FOLDER)
    before = artifact.read_manifest(str(finetuned))
    assert before is not None  # sealed, or `newest_checkpoint` would not give it
    keys = recipe_origin(job.recipe, ("finetune.preference",))
    made_from = {**origin, "pairs": pairs.digest, "finetuned": before.digest} | {
        key: value for key, value in keys.items() if key != f"{PREFERENCE_KEYS}.inputs"
    }
    steps = training.num_steps(len(pairs.train), settings)
    done, folder = processes.run_on_first(lambda: _newest(work, made_from)) or (0, None)
    if done < steps:
        log.info("%d pairs, %d steps of preference, %d done", len(pairs.train), steps, done)
        trainer = _trainer(work, pairs, tokenizer, finetuned, made_from, steps, processes, device)
        callback = PreferenceCallback(work, made_from, processes)
        _, folder = training.train(work, trainer, callback, done, folder, "preference")
    assert folder is not None  # there is at least one step
    if not processes.is_first:
        return folder, {}
    curve = training.write_curve(job.out / PREFERENCE_CURVE, folder, LOGGED)
    last = curve[-training.LAST_STEPS :]
    figures: Figures = {
        "pairs": len(pairs.train),
        "heldout_pairs": len(pairs.heldout),
        "steps": int(curve[-1]["step"]),
        "beta": settings.beta,
        "lr": job.recipe.finetune.preference_lr,
        "first_loss": curve[0]["loss"],
        **{name: sum(line[name] for line in last) / len(last) for name in MEANS},
    }
    return folder, figures | {name: curve[-1][name] for name in HELDOUT if name in curve[-1]}


def _newest(job: Job, origin: Mapping[str, str]) -> tuple[int, Path] | None:
    """Return step and directory of the newest whole checkpoint; none without its reference."""
    # The model that it was computed from is gone then, and another would be taken for it.
    if training.fault_of(job.work / REFERENCE_FOLDER, origin) is not None:
        shutil.rmtree(job.work / "trainer", ignore_errors=True)
        return None
    return training.newest_checkpoint(job, origin)


def _settings(job: Job) -> Preference:
    settings = job.recipe.finetune.preference
    assert settings is not None  # or nobody calls
    return settings


def _trainer(
    job: Job, pairs: Pairs, tokenizer: PreTrainedTokenizerFast, finetuned: Path, origin: Mapping[str, str],
    steps: int, processes: Group, device: torch.device,
) -> PairTrainer:  # fmt: skip
    settings, learning = _settings(job), job.recipe.finetune
    training.set_up_model(job, tokenizer, processes)
    trains_all = learning.trains == "all"
    model = load_for_training(job, device, finetuned if trains_all else None)
    trainer = PairTrainer(
        batch_size=settings.batch_size,
        reference_of=lambda compute: _reference(job, compute, origin, processes),
        rows=pairs.rows,
        model=model,
        args=DPOConfig(
            **training.shared_configuration(job, settings, steps, processes, measures=len(pairs.heldout) > 0),
            learning_rate=learning.preference_lr,
            beta=settings.beta,
            loss_type=[settings.loss],
            # Without it TRL loads a second model; `PairTrainer` computes the reference itself.
            precompute_ref_log_probs=trains_all and processes.size == 1,
            remove_unused_columns=False,
        ),
        train_dataset=pairs.train,
        eval_dataset=pairs.heldout if len(pairs.heldout) else None,
        processing_class=tokenizer,
        peft_config=adapter_config(learning, job.recipe.trained_embeddings, model, tokenizer),
    )
    training.prepare(trainer)
    if not trains_all:
        take_adapter(trainer.model, finetuned)
    return trainer


def _reference(
    job: Job, compute: Callable[[], LogProbabilities], origin: Mapping[str, str], processes: Group
) -> LogProbabilities:
    """Load the reference of an earlier start of this run, or compute and keep it."""
    folder = job.work / REFERENCE_FOLDER
    file = folder / "log_probabilities.npy"

    def read() -> LogProbabilities | None:
        return np.load(file, allow_pickle=False) if training.fault_of(folder, origin) is None else None

    def write(computed: LogProbabilities) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        np.save(file, computed)
        artifact.seal(folder, kind=REFERENCE_KIND, origin=origin)

    reference = processes.run_on_first(read)
    if reference is None:
        reference = compute()
        processes.run_on_first(lambda: write(reference))
    return reference


class PreferenceCallback(training.TrainingCallback):
    """The callback for pairs, with their figures."""

    losses = ("loss",)
    rate_key = "finetune.preference.lr"

    def figures(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """Return the figures of a step by its log."""
        return {f"preference_{name}": value for name, value in training.figures_of(logs, LOGGED).items()}

    def tell(self, figures: Mapping[str, float], step: int) -> None:
        """Show how a step went."""
        if "preference_loss" in figures:
            loss, margin = (figures[f"preference_{name}"] for name in ("loss", "reward_margin"))
            self.bar.advance(note=f"loss {loss:.3f}, margin {margin:.3f}")
        measured = [figures[f"preference_{name}"] for name in HELDOUT if f"preference_{name}" in figures]
        if measured:
            log.info(
                "step %d: held-out pairs: margin %.3f, %.0f %% won", step, measured[0], 100 * measured[1]
            )
