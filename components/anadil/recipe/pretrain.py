"""The recipe's section `pretrain`: what is trained, how devices share it, how it lives through faults.

"Azercell" is "Azerbaijani Llama on Amazon SageMaker AI" (AWS Machine Learning Blog, with Azercell
Telecom).
"""

import fractions
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from anadil.recipe.fields import NEUTRAL, Directory, Fraction, Place, StrictModel, did_you_mean

Mix = dict[str, NonNegativeFloat]
"""Source -> share of the tokens, relative to the others."""
LEAST_SHARE = fractions.Fraction(1, 10_000)
"""Least share of a source that a mix names. The order of training counts in ten-thousandths."""

Mistake = tuple[tuple[str | int, ...], str]
"""Path of a key, and the reason with the remedy."""


def with_shares(mix: Mix | None) -> Mix | None:
    """Return a mix as it is; `ValueError` where no source has a share, or one has a share that is too small."""
    if mix is None:
        return None
    # As the decimal that was written: .1 is a tenth.
    shares = {name: fractions.Fraction(str(share)) for name, share in mix.items()}
    total = sum(shares.values())
    if not total:
        raise ValueError("all shares are 0; give a source a share above 0")
    if small := [name for name, share in shares.items() if 0 < share < LEAST_SHARE * total]:
        raise ValueError(
            f"the share of {', '.join(small)} is below 1/{LEAST_SHARE.denominator:,} of all; raise it or set it to 0"
        )
    return mix


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """Facts of an optimizer for planner, checkpoints and this section's check."""

    name: str
    moments: tuple[str, ...]
    """Numbers that it keeps for each trained one, in the precision of the weight; their names in checkpoints."""
    numbers_moved: int
    """Numbers that a step reads and writes for each trained one."""


OPTIMIZERS: Mapping[str, OptimizerFacts] = {
    "adamw": OptimizerFacts(
        name="AdamW",
        moments=("exp_avg", "exp_avg_sq"),
        # A gradient read for its norm, read and written to be scaled; weight, gradient and two moments
        # read, weight and moments written. Source: torch's fused AdamW.
        numbers_moved=10,
    ),
}
"""By name. `anadil.pretrain.optimizer` makes each of them; a second one makes the name a key of the section."""


class Phase(StrictModel):
    """A phase of continued pre-training with its own trainable set and learning rate."""

    trains: Literal["new_rows", "embeddings", "all"]
    """`new_rows` changes only the embedding rows of new tokens, without weight decay, and is left out where there are none; `embeddings` freezes the backbone; `all` trains the whole model."""
    steps: PositiveInt
    """Optimizer steps, not micro-batches."""
    lr: PositiveFloat
    """Peak learning rate, reached after warm-up."""
    embedding_lr: PositiveFloat | None = None
    """Peak learning rate of the embeddings, input and output; `lr` where it is not set."""
    mix: Annotated[Mix | None, AfterValidator(with_shares)] = None
    """Shares of the tokens by name of `sources`, relative to each other, as `{web: 0.8, en: 0.2}`; with `sources` alone."""
    anneal: Annotated[Mix | None, AfterValidator(with_shares)] = None
    """The same for the steps in which `schedule: wsd` falls; left out, `mix`."""


class Parallelism(StrictModel):
    """How the devices of a run share one model; `anadil plan --best` prints the fastest."""

    shard: PositiveInt = 1
    """Devices that share one copy of parameters, gradients and optimizer state (FSDP2); 1 is a copy each (DDP)."""
    tensor: PositiveInt = 1
    """Devices that share each matrix product, and the norms between them (sequence parallel)."""
    context: PositiveInt = 1
    """Devices that share each sequence."""
    pipeline: PositiveInt = 1
    """Devices that share the layers, one stage each."""
    prefetch: Annotated[int, Field(ge=0, le=8)] = 1
    """Layers that are gathered ahead where `shard` is above 1; 0 gathers none early in the backward pass."""
    reshard: bool = True
    """Where `shard` is above 1: free a layer after its forward pass and gather it again; false keeps it (as ZeRO-2)."""


class Copies(StrictModel):
    """Checkpoints beside those of `checkpoint_every`: nearer, faster, and sooner lost."""

    memory_every: NonNegativeInt = 0
    """Optimizer steps between copies in main memory, for `faults.on_anomaly: skip` alone; 0 is `checkpoint_every`."""
    local_every: NonNegativeInt = 0
    """Optimizer steps between checkpoints on each node's own disk; 0 writes none."""
    local_path: Directory | None = None
    """Directory on the node's own disk (NVMe), which outlives a restart of the processes."""
    local_keep: PositiveInt = 2
    """Checkpoints kept on the node's own disk."""
    archive: Place | None = None
    """Directory or `s3://` prefix that each checkpoint of `checkpoint_every` is copied to while training continues."""
    archive_keep: PositiveInt = 3
    """Checkpoints kept in the archive. Source: the storage estimate of AWS's guide to large-scale training."""


class Faults(StrictModel):
    """Actions of training when a device, a node or the data goes wrong."""

    on_anomaly: Literal["stop", "skip"] = "stop"
    """After a loss or gradient that is NaN or Inf, or a spike: `skip` goes back to the last copy and leaves the batches out."""
    spike_ratio: Annotated[float, Field(gt=1)] = 2.0
    """A loss this many times the median of the last 100 is a spike. Assumption; a clean run stays under 1.2."""
    most_skips: PositiveInt = 3
    """Roll-backs after which training stops, since the data or the learning rate is to blame."""
    on_out_of_memory: Literal["stop", "halve"] = "stop"
    """`halve` resumes with half the micro-batch and twice the accumulation: the same step, in less memory."""
    hang_after_s: PositiveFloat = 600
    """Seconds without a step that end the run, with stacks; 1,800 at its start and in saves. Source: NCCL's timeout."""
    straggler_ratio: Annotated[float, Field(gt=1)] = 1.2
    """A process whose own work takes this many times the median is named. Assumption."""
    replica_check_every: NonNegativeInt = 100
    """Optimizer steps between comparisons of the replicas' weights, bit by bit; 0 never compares."""
    burn_in: Literal["auto", "always", "never"] = "auto"
    """Tests of device, network and disk before the first step; `auto` on GPUs."""
    budget_hours: PositiveFloat | None = None
    """Hours of training after which a run saves and ends with exit code 7."""
    budget_usd: PositiveFloat | None = None
    """The same for the price of its nodes, on demand."""


class Distillation(StrictModel):
    """Divergence from the base model on sources with `teacher: base`, added to the loss."""

    weight: PositiveFloat | Literal["auto"] = "auto"
    """Nats of the loss for a nat of KL(base || model) at such a token. `auto`: the least that keeps `evaluate.retained` and these sources, but for those in the taught language, within `evaluate.gate.max_retained_ratio`, changed at each validation."""
    top_k: Annotated[int, Field(ge=1, le=256)] = 16
    """Likeliest tokens whose probabilities are stored for each token. All others count together. 16 are 66 or 98 bytes."""


def probability_bytes(k: int, vocabulary: int) -> int:
    """Return the bytes of a token's probabilities: `k` ids of 2 or 4 bytes, and FP16 for each and for all others."""
    return (2 if vocabulary < 2**16 - 1 else 4) * k + 2 * (k + 1)


class Pretrain(StrictModel):
    """corpus, tokenizer -> model."""

    # A neutral key changes the losses by rounding at most, so a resume may change it.

    # The content of the checkpoint decides, which is an input of the stage; its place does not.
    start_from: Annotated[Place | None, NEUTRAL] = None
    """Checkpoint `step-N` of another run, a directory or `s3://`, with whose weights, moments and place in the text training begins after step N of `phases`. A finished model: its weights at step 0, with new moments. Left out, the base at step 0."""
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)] = (
        Phase(trains="embeddings", steps=5_000, lr=0.0032),
        Phase(trains="all", steps=15_000, lr=0.0024),
    )
    """Phases of training, one after another. Source: Azercell."""
    max_epochs: PositiveFloat | None = None
    """Most passes over the training text; where `phases` make more, each of them gets so many steps fewer that they do not. Four are nearly as good as new text: arXiv:2305.16264. Left out, as many as they make."""
    batch_size: PositiveInt = 224
    """Sequences of one optimizer step over all devices. Source: Azercell, 14 on each of 16 GPUs."""
    micro_batch_size: Annotated[PositiveInt, NEUTRAL] = 14
    """Most sequences that one device holds at a time. Source: Azercell."""
    sequence_length: Annotated[int, Field(ge=8)] = 2_048
    """Tokens of a packed sequence. Source: Azercell."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """`auto` is BF16 mixed precision on a GPU (Azercell) and on a CPU with BF16 products of its own (AVX512-BF16, AMX,
    ARM's BF16), FP32 on any other CPU, whatever is asked for."""
    matmul: Literal["same", "float8_tensorwise", "float8_rowwise", "mxfp8", "nvfp4"] = "same"
    """Precision of the layers' matrix products: that of `precision`, or less on GPUs that have it."""
    state: Literal["fp32", "bf16"] = "fp32"
    """Weights, gradients and moments: 16 bytes a parameter, or 8 as published, which drops small updates."""
    kernels: Literal["auto", "liger", "torch"] = "auto"
    """`auto` is Liger's fused kernels on a GPU (Azercell) and torch's elsewhere."""
    activation_checkpointing: Annotated[Literal["none", "selective", "full"], NEUTRAL] = "none"
    """Activations made again in the backward pass: none, all but matrix products and attention, all."""
    compile: Annotated[bool, NEUTRAL] = False
    """Compile each layer with `torch.compile`; the first step takes minutes."""
    parallelism: Annotated[Parallelism, NEUTRAL] = Parallelism()
    embedding_init: Literal["mean", "random"] = "mean"
    """Rows of new tokens: mean of their pieces' rows, or random rows, which are for comparison."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """Learning rate after warm-up: half a cosine (Azercell), or flat with a linear fall at the end (WSD)."""
    decay_fraction: Fraction = 0.1
    """Share of each phase's steps in which `wsd` falls. Source: MiniCPM, arXiv:2404.06395, section 4.3."""
    average_last: Annotated[int, Field(ge=2)] | None = None
    """Checkpoints of `wsd` whose mean is the model, the last ones, all alike. Its rate never falls then, whatever `decay_fraction` says. Source: LAWA, arXiv:2306.03241."""
    warmup_fraction: Fraction = 0.05
    """Share of each phase's steps with a rising rate. Source: Chinese-LLaMA-Alpaca, arXiv:2304.08177."""
    final_lr_fraction: Fraction = 0.1
    """The rate ends at this share of the peak. Source: Hoffmann et al. 2022, arXiv:2203.15556."""
    weight_decay: NonNegativeFloat = 0.1
    """AdamW; not on vectors. Source: Llama 2, arXiv:2307.09288, section 2.2."""
    embedding_weight_decay: NonNegativeFloat | None = None
    """AdamW on the embeddings, input and output; `weight_decay` where it is not set."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """AdamW. Source: Llama 2, arXiv:2307.09288, section 2.2."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradient clipping. Source: Llama 2, arXiv:2307.09288, section 2.2."""
    z_loss: NonNegativeFloat = 0.0
    """Weight of the squared log of the softmax's sum. PaLM, arXiv:2204.02311, section 5, has 1e-4; Llama none."""
    distillation: Distillation = Distillation()
    checkpoint_every: Annotated[PositiveInt, NEUTRAL] = 500
    """Optimizer steps between checkpoints."""
    keep_checkpoints: Annotated[PositiveInt, NEUTRAL] = 3
    """Checkpoints kept. Source: the storage estimate of AWS's guide to large-scale training."""
    copies: Annotated[Copies, NEUTRAL] = Copies()
    faults: Annotated[Faults, NEUTRAL] = Faults()
    validate_every: Annotated[NonNegativeInt, NEUTRAL] = 500
    """Optimizer steps between bits per byte of the corpus's held-out part, also before the first step, which is the base's, and at each phase's end; 0 never."""
    validate_documents: Annotated[PositiveInt, NEUTRAL] = 200
    """Most held-out documents of a validation, the first ones."""
    profile_steps: Annotated[NonNegativeInt, NEUTRAL] = 0
    """Optimizer steps traced by torch's profiler, after ten, or the last of a shorter run; the trace goes into the work directory."""
    log_every: Annotated[PositiveInt, NEUTRAL] = 10
    """Optimizer steps between logged lines. Source: TRL, SFTConfig."""

    @model_validator(mode="after")
    def _keys_fit_each_other(self) -> "Pretrain":
        if self.state == "bf16" and self.precision == "fp32":
            raise ValueError(
                "precision fp32 contradicts state bf16: weights kept in BF16 are computed with in BF16; "
                "set precision to auto or bf16, or state to fp32"
            )
        if self.average_last and self.schedule != "wsd":
            raise ValueError(
                f"average_last is {self.average_last}, and the mean takes the place of the decay of wsd alone, not of {self.schedule}; "
                "set schedule to wsd, or leave average_last out"
            )
        if self.copies.local_every and self.copies.local_path is None:
            raise ValueError(
                "copies.local_every is set without copies.local_path; name a directory on the node's disk"
            )
        if self.copies.memory_every and self.faults.on_anomaly != "skip":
            raise ValueError(
                f"copies.memory_every is {self.copies.memory_every}, but nothing reads copies in memory while "
                f"faults.on_anomaly is {self.faults.on_anomaly}; set faults.on_anomaly to skip, or "
                "copies.memory_every to 0"
            )
        return self

    def warmup_steps(self, phase: Phase) -> int:
        """Steps at the begin of a phase in which the rate rises."""
        return math.ceil(self.warmup_fraction * phase.steps)

    def decay_steps(self, phase: Phase) -> int:
        """Steps at the end of a phase in which `wsd` falls; the warm-up comes first where the two overlap."""
        if self.average_last:
            return 0
        return min(math.ceil(self.decay_fraction * phase.steps), phase.steps - self.warmup_steps(phase))

    @property
    def plateau_ends(self) -> tuple[int, ...]:
        """Optimizer steps after which `wsd` begins to fall, one of each phase with a flat part: places to branch off."""
        if self.schedule != "wsd":
            return ()
        ends = accumulate(phase.steps for phase in self.phases)
        return tuple(
            end - self.decay_steps(phase)
            for end, phase in zip(ends, self.phases, strict=True)
            if phase.steps > self.warmup_steps(phase) + self.decay_steps(phase)
        )

    @property
    def optimizer(self) -> str:
        """Name among `OPTIMIZERS`."""
        return "adamw"

    @property
    def steps(self) -> int:
        """Optimizer steps of all phases together."""
        return sum(phase.steps for phase in self.phases)

    def last_checkpoints(self, number: int) -> tuple[int, ...]:
        """Steps of the last checkpoints, at most `number`, behind the last phase that trains other weights.

        Those before the checkpoint of `start_from` are of another run, which has removed them.
        """
        ends = list(accumulate(phase.steps for phase in self.phases))
        # A mean with a backbone that was frozen until then would take most of its training back.
        other = (
            end for end, each in zip(ends, self.phases, strict=True) if each.trains != self.phases[-1].trains
        )
        begin = max((self.start_step, *other))
        regular = range(0, self.steps, self.checkpoint_every)
        return tuple(sorted({step for step in (*regular, *ends, *self.plateau_ends) if step > begin}))[
            -number:
        ]

    @property
    def phases_left(self) -> tuple[Phase, ...]:
        """Phases with the steps that a run does: those before the checkpoint of `start_from` are done."""
        done, left = self.start_step, []
        for phase in self.phases:
            if phase.steps > done:
                left.append(phase.model_copy(update={"steps": phase.steps - done}))
            done = max(0, done - phase.steps)
        return tuple(left) or self.phases

    @property
    def without_new_rows(self) -> "Pretrain":
        """The same for a tokenizer without new tokens: no phase of new_rows, unless all are."""
        phases = tuple(phase for phase in self.phases if phase.trains != "new_rows")
        return self.model_copy(update={"phases": phases or self.phases})

    @property
    def start_step(self) -> int:
        """Step of the checkpoint that `start_from` names, by its name; 0 where it has another one."""
        match = re.search(r"step-(\d+)/*$", self.start_from or "")
        return int(match[1]) if match else 0

    def within_epochs(self, num_sequences: float) -> "Pretrain":
        """The same for a text of so many packed sequences: its phases make at most `max_epochs`."""
        if self.max_epochs is None:
            return self
        steps = max(1, round(self.max_epochs * num_sequences / self.batch_size))
        if steps >= self.steps:
            return self
        return self.model_copy(update={"phases": scaled_phases(self.phases, steps)})


def scaled_phases(phases: Sequence[Phase], steps: int) -> tuple[Phase, ...]:
    """The phases in as many steps, each with its share; one whose share is no step is left out."""
    total = sum(phase.steps for phase in phases)
    done = begin = 0
    scaled = []
    for phase in phases:
        done += phase.steps
        end = round(steps * done / total)
        if end > begin:
            scaled.append(phase.model_copy(update={"steps": end - begin}))
        begin = end
    return tuple(scaled)


def refuse_mix_mistakes(pretrain: Pretrain, sources: Collection[str]) -> None:
    """Refuse mixes that do not fit the table `sources` and the schedule: each mistake at its own key."""
    mistakes = list(_of_phases(pretrain, sources))
    mixes = [mix for phase in pretrain.phases for mix in (phase.mix, phase.anneal) if mix]
    if all(phase.mix is not None for phase in pretrain.phases):
        reason = "no phase uses the source; give it a share in pretrain.phases[].mix, or remove it"
        unused = [name for name in sources if not any(mix.get(name) for mix in mixes)]
        mistakes += [(("sources", name), reason) for name in unused]
    if mistakes:
        details = [
            InitErrorDetails(
                type=PydanticCustomError("mix", "{reason}", {"reason": reason}), loc=place, input=None
            )
            for place, reason in mistakes
        ]
        raise ValidationError.from_exception_data("recipe", details)


def _of_phases(pretrain: Pretrain, sources: Collection[str]) -> Iterator[Mistake]:
    for number, phase in enumerate(pretrain.phases):
        place = ("pretrain", "phases", number)
        if sources and phase.mix is None:
            shares = ", ".join(f"{name}: {share}" for name, share in _example(sources).items())
            yield (
                place,
                f"has no mix, and the recipe has sources; write the shares, such as mix: {{{shares}}}",
            )
        for key, mix in (("mix", phase.mix), ("anneal", phase.anneal)):
            if mix is not None and not sources:
                yield (*place, key), "needs sources, and the recipe has none; name them or remove the key"
                continue
            for name in (mix or {}).keys() - set(sources):
                names = ", ".join(sources)
                yield (*place, key, name), f"is not in sources ({names}){did_you_mean(name, list(sources))}"
        if phase.anneal is not None and pretrain.schedule != "wsd":
            reason = f"is the mix of the decay of wsd, and pretrain.schedule is {pretrain.schedule}"
            yield (*place, "anneal"), f"{reason}; set schedule to wsd, or remove anneal"
        elif phase.anneal is not None and not pretrain.decay_steps(phase):
            yield (
                (*place, "anneal"),
                "no step decays; raise pretrain.decay_fraction and leave pretrain.average_last out, or remove anneal",
            )


def _example(sources: Collection[str]) -> dict[str, float]:
    """Shares to show: most of the text is the first source's."""
    first, *others = sources
    return {first: 0.8 if others else 1} | dict.fromkeys(others, round(0.2 / max(1, len(others)), 3))
