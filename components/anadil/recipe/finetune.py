"""The section `finetune`: what learns from chats, and how."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from anadil.recipe.fields import NEUTRAL, Fraction, Place, StrictModel
from anadil.text.chat_columns import ChatColumn

EmbeddingRows = Literal["none", "control", "all"]
Schedule = Literal["cosine", "linear", "constant"]
NO_SYSTEM = "none"
"""Value of `finetune.system`."""


Loss = Literal["sigmoid", "ipo", "hinge", "apo_zero"]


class Preference(StrictModel):
    """Second step of finetuning (DPO): from pairs of answers the model learns to prefer the better one."""

    inputs: Annotated[tuple[str, ...], Field(min_length=1)]
    """Files or datasets of pairs, of the kinds that `finetune.inputs` takes: `prompt`, `chosen` and `rejected`; their layouts are in the guide."""
    beta: PositiveFloat = 0.1
    """How much it costs to leave the finetuned model: reward = beta x change of an answer's log-probability. Source: DPO, arXiv:2305.18290, appendix B; Zephyr, arXiv:2310.16944, section 4.2."""
    loss: Loss = "sigmoid"
    """Loss of a pair's rewards: `sigmoid` is DPO's; `ipo` (arXiv:2310.12036, beta is its tau) does not overfit pairs that are always won; `hinge` (SLiC, arXiv:2305.10425); `apo_zero` (arXiv:2408.06266) raises the chosen answer by itself. Source of the default: DPO."""
    lr: PositiveFloat | None = None
    """Peak learning rate; left out, 0.000005 for an adapter and 0.0000005 for all weights. Source: huggingface/alignment-handbook, recipes/zephyr-7b-beta/dpo, config_qlora.yaml and config_full.yaml."""
    schedule: Schedule = "linear"
    """How the rate falls after the warm-up. Source: Zephyr, section 4.2."""
    warmup_fraction: Fraction = 0.1
    """Share of the steps in which the rate rises from 0. Source: Zephyr, section 4.2."""
    epochs: PositiveFloat = 1.0
    """Passes over the pairs. Source: huggingface/alignment-handbook, as `lr`."""
    batch_size: PositiveInt = 4
    """Pairs that go through the model at a time, on all devices together: twice as many chats."""
    gradient_accumulation: PositiveInt = 8
    """Such batches of one optimizer step: 32 pairs with these defaults. Source: Zephyr, section 4.2."""
    max_length: PositiveInt = 1_024
    """Tokens of a question with either answer; a pair with a longer one is left out and counted. Source: TRL's DPOConfig; huggingface/alignment-handbook, as `lr`."""


class Finetune(StrictModel):
    """model, chats -> adapter."""

    # The content decides, which is an input of the stage; its place does not.
    start_from: Annotated[Place | None, NEUTRAL] = None
    """Adapter of another run, a directory or `s3://`, with whose weights finetuning begins; its held-out chats stay held out. It has to be of the same model, and of the same form. Left out, a new one."""
    inputs: tuple[str, ...] = ()
    """Files or datasets of chats: `.jsonl[.gz|.zst]`, `.json`, `.parquet`, `.arrow`, `.csv`, `.tsv`, `.xlsx`; their layouts are in the guide."""
    columns: dict[ChatColumn, str] = Field(default_factory=dict)
    """Columns with names of their own, or paths to them, such as `{question: data.Sual, answer: Cavab}`; left out, those of the usual layouts are read."""
    mix: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Name of a file or dataset -> how often an epoch shows each of its chats, such as 2 or 0.5; left out, 1."""
    system: str | None = None
    """System turn of chats that have none, in training and where the model is served; `none`, none at all; left out, that of the base's chat template, which `anadil doctor` shows."""
    heldout_fraction: Fraction = 0.05
    """Share of questions that training never sees, which `evaluate` asks. Chosen by us."""
    trains: Literal["adapter", "all"] = "adapter"
    """Weights that learn: a LoRA adapter, or `all` weights. Then there is no adapter file but the whole model, which takes the memory of pre-training; a rate for an adapter is too high for a large model (Tulu 3: 5e-6). Source of the default: Azercell."""
    trains_embeddings: EmbeddingRows | None = None
    """Embedding rows that learn beside the adapter: none, those of the chat format's control tokens, or all; left out, `control` where `tokenizer` may change the vocabulary, for pre-training never sees these tokens. Chosen by us, measured in benchmarks/answers."""
    rank: PositiveInt = 64
    """LoRA rank. Source: Azercell."""
    alpha: PositiveInt = 28
    """LoRA alpha; the update is scaled by alpha / rank = 0.4375. Source: Azercell."""
    rslora: bool = False
    """Scale it by alpha / sqrt(rank) instead: 3.5 with these defaults, 8 times as much, so lower alpha with it. Source: rsLoRA, arXiv:2312.03732."""
    dora: bool = False
    """Train direction and length of a weight apart: somewhat better at low ranks, slower. Source: DoRA, arXiv:2402.09353."""
    dropout: Fraction = 0.05
    """LoRA dropout. Source: Azercell."""
    quantization: Literal["none", "4bit"] = "none"
    """`4bit`: the frozen weights are held in NF4 while the adapter learns (QLoRA); needs a GPU and bitsandbytes. Source: arXiv:2305.14314."""
    lr: PositiveFloat = 1e-4
    """Peak learning rate. Source: Azercell."""
    schedule: Schedule = "cosine"
    """How the rate falls after the warm-up: to 0 along a cosine or a line, or not at all. Source: Stanford Alpaca, README, "Fine-tuning"."""
    warmup_fraction: Fraction = 0.03
    """Share of the steps in which the rate rises from 0. Source: Stanford Alpaca, README, "Fine-tuning"."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's weight decay, of matrices only. Source: transformers' TrainingArguments."""
    neftune_alpha: PositiveFloat | None = None
    """Size of the uniform noise on embeddings while training, published with 5, 10 and 15; left out, none. Source: NEFTune, arXiv:2310.05914."""
    max_length: PositiveInt = 1_024
    """Tokens of a chat; a longer one is left out and counted, so that no answer loses its end. Source: Azercell."""
    epochs: PositiveFloat = 3.0
    """Passes over the chats. Source: transformers' TrainingArguments."""
    batch_size: PositiveInt = 8
    """Chats that go through the model at a time, on all devices together. Source: transformers' TrainingArguments."""
    gradient_accumulation: PositiveInt = 1
    """Such batches of one optimizer step: more for a larger step in the same memory. Source: transformers' TrainingArguments."""
    checkpoint_every: PositiveInt = 100
    """Optimizer steps between checkpoints, and between measurements of the validation loss."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of questions, chosen by their hash, whose chats only measure the validation loss."""
    patience: PositiveInt | None = None
    """Measurements of the validation loss without a lower one after which training ends; the checkpoint with the lowest is the result. Left out, all epochs are trained and the last checkpoint is."""

    preference: Preference | None = None
    """A second step that learns from pairs of a better and a worse answer, as `{inputs: [pairs.jsonl]}`; left out, none."""

    @field_validator("system")
    @classmethod
    def _no_system_has_one_spelling(cls, system: str | None) -> str | None:
        return NO_SYSTEM if system is not None and system.strip().casefold() in ("", NO_SYSTEM) else system

    @model_validator(mode="after")
    def _an_adapters_keys_have_an_adapter(self) -> "Finetune":
        if self.trains == "adapter":
            return self
        for key, off in (("rslora", False), ("dora", False), ("quantization", "none")):
            if (value := getattr(self, key)) != off:
                raise ValueError(
                    f"{key} {value!r} is for an adapter, and trains is 'all'; leave one of them out"
                )
        if self.trains_embeddings not in (None, "all"):
            raise ValueError(
                f"trains_embeddings {self.trains_embeddings!r} is for an adapter, and trains is 'all'; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _shares_and_patience_fit(self) -> "Finetune":
        if (taken := self.heldout_fraction + self.validation_fraction) >= 1:
            raise ValueError(
                f"heldout_fraction and validation_fraction take {taken:.4g} of the chats together; leave some to train on"
            )
        if self.patience is not None and not self.validation_fraction:
            raise ValueError(
                f"patience {self.patience} waits for the validation loss, and validation_fraction is 0; set it, such as 0.05"
            )
        return self

    @property
    def system_text(self) -> str | None:
        """The recipe's own system turn; None without one."""
        return None if self.system == NO_SYSTEM else self.system

    @property
    def most_processes(self) -> int:
        """Processes that can train together: each needs a chat or pair of the batch, and four bits lie on one GPU."""
        pairs = self.preference.batch_size if self.preference else self.batch_size
        return min(self.batch_size, pairs) if self.quantization == "none" else 1

    @property
    def preference_lr(self) -> float:
        """Peak learning rate of the preference step."""
        given = self.preference.lr if self.preference else None
        return given or (5e-6 if self.trains == "adapter" else 5e-7)
