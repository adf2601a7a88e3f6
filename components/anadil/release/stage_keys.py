"""Keyword arguments of the functions that run a stage, for editors and type checkers: keys of the recipe's sections.

Generated from `components/anadil/recipe` by `scripts/make_stage_keys.py`. `docs/reference/recipe.md` says what each does.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from anadil.release.stage_process import Options


class CleanOptions(Options, total=False):
    """Keys of the section `clean`."""

    text_field: str
    as_is: bool
    extract: Literal["fast", "balanced", "precision"]
    tables: bool
    code: bool
    url_lists: Sequence[str]
    url_allow: Sequence[str]
    pii: bool
    decontaminate: bool
    line_language: bool
    rules: Literal["none"] | Mapping[str, Any]
    modes: Mapping[str, Literal["enforce", "report"]]
    ng_words: Sequence[str]
    quality_model: str | None
    quality_label: str
    minhash_bands: int
    minhash_rows: int
    minhash_shingle: int
    heldout_fraction: float
    heldout_max_documents: int
    max_bad_records: float
    since: str | None
    workers: int | None
    engine: Literal["processes", "ray", "job"]
    shard_bytes: int


class TokenizerOptions(Options, total=False):
    """Keys of the section `tokenizer`."""

    strategies: Sequence[Literal["base", "extend", "replace", "surgery"]]
    vocab_sizes: Literal["auto"] | Sequence[int]
    choice: Literal["base", "extend", "replace", "surgery", "auto"]
    min_frequency: int
    min_uses: int
    keep: Sequence[str]
    trial: Mapping[str, Any] | None
    min_word_count: int
    workers: int | None
    pad_to: int
    prune: bool


class PretrainOptions(Options, total=False):
    """Keys of the section `pretrain`."""

    start_from: str | None
    phases: Sequence[Mapping[str, Any]]
    max_epochs: float | None
    batch_size: int
    micro_batch_size: int
    sequence_length: int
    precision: Literal["auto", "bf16", "fp32"]
    matmul: Literal["same", "float8_tensorwise", "float8_rowwise", "mxfp8", "nvfp4"]
    state: Literal["fp32", "bf16"]
    kernels: Literal["auto", "liger", "torch"]
    activation_checkpointing: Literal["none", "selective", "full"]
    compile: bool
    parallelism: Mapping[str, Any]
    embedding_init: Literal["mean", "random"]
    schedule: Literal["cosine", "wsd"]
    decay_fraction: float
    average_last: int | None
    warmup_fraction: float
    final_lr_fraction: float
    weight_decay: float
    embedding_weight_decay: float | None
    betas: Sequence[float]
    max_grad_norm: float
    z_loss: float
    checkpoint_every: int
    keep_checkpoints: int
    copies: Mapping[str, Any]
    faults: Mapping[str, Any]
    validate_every: int
    validate_documents: int
    profile_steps: int
    log_every: int


class FinetuneOptions(Options, total=False):
    """Keys of the section `finetune`."""

    start_from: str | None
    columns: Mapping[str, str]
    mix: Mapping[str, float]
    system: str | None
    heldout_fraction: float
    trains: Literal["adapter", "all"]
    trains_embeddings: Literal["none", "control", "all"] | None
    rank: int
    alpha: int
    rslora: bool
    dora: bool
    dropout: float
    quantization: Literal["none", "4bit"]
    lr: float
    schedule: Literal["cosine", "linear", "constant"]
    warmup_fraction: float
    weight_decay: float
    neftune_alpha: float | None
    max_length: int
    epochs: float
    batch_size: int
    gradient_accumulation: int
    checkpoint_every: int
    validation_fraction: float
    patience: int | None
    preference: Mapping[str, Any] | None


class EvaluateOptions(Options, total=False):
    """Keys of the section `evaluate`."""

    heldout: Sequence[str]
    context: int | None
    stride: int | None
    prompts: Sequence[str]
    questions: Sequence[str]
    max_questions: int
    max_new_tokens: int
    retained: Sequence[str]
    champion: str | None
    gate: Mapping[str, Any]
