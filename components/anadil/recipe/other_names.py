"""Recipe keys by the names of other trainers: Hugging Face, PEFT, TRL, Axolotl, LLaMA-Factory, DeepSpeed, torchtune.

Only for messages: a recipe takes none of these names.
"""

import difflib
import re

MIN_NEAR_CHARS, NEAR_NAME = 6, 0.85
"""Name that a slip is looked for, and how alike the two are."""
TRAINED_TWICE = {
    "lr": ("pretrain.phases[].lr", "finetune.lr"),
    "epochs": ("pretrain.max_epochs", "finetune.epochs"),
    "steps": ("pretrain.phases[].steps", "finetune.epochs"),
    "batch": ("pretrain.batch_size (of all devices together)", "finetune.batch_size"),
    "micro_batch": ("pretrain.micro_batch_size (of one device)", "finetune.batch_size"),
    "accumulation": ("pretrain.batch_size, of which pretrain.micro_batch_size goes at once", "finetune.gradient_accumulation"),
    "length": ("pretrain.sequence_length", "finetune.max_length"),
    "schedule": ("pretrain.schedule", "finetune.schedule"),
    "warmup": ("pretrain.warmup_fraction", "finetune.warmup_fraction"),
    "decay": ("pretrain.weight_decay", "finetune.weight_decay"),
    "save": ("pretrain.checkpoint_every", "finetune.checkpoint_every"),
    "validate": ("pretrain.validate_every", "finetune.validation_fraction"),
    "data": ("clean.inputs (text)", "finetune.inputs (chats)"),
    "heldout": ("clean.heldout_fraction", "finetune.heldout_fraction"),
}  # fmt: skip
"""Keys that both training stages have: the key of pre-training, that of finetuning."""
_ADAPTER = "finetune.trains: adapter, with finetune.rank, finetune.alpha and finetune.dropout"
_SHARDING = "pretrain.parallelism.shard, the number of devices that share the weights (FSDP2, as ZeRO 3); there is no file of settings"
_TRACKING = "tracking.uri, the address of an MLflow server, wandb://ENTITY/PROJECT or tensorboard:DIR"

OTHER_NAMES = {
    "lr": "learning_rate max_learning_rate peak_lr base_lr lr",
    "epochs": "num_train_epochs num_epochs n_epochs train_epochs max_epochs epochs",
    "steps": "max_steps max_train_steps train_steps num_train_steps total_steps train_iters max_iters steps",
    "batch": "train_batch_size global_batch_size total_batch_size effective_batch_size batch_size",
    "micro_batch": "per_device_train_batch_size per_device_batch_size per_gpu_train_batch_size micro_batch_size train_micro_batch_size_per_gpu device_batch_size",
    "accumulation": "gradient_accumulation_steps grad_accum_steps gradient_accumulation accumulate_grad_batches",
    "length": "max_seq_length max_seq_len max_length max_len sequence_len seq_len seq_length sequence_length cutoff_len block_size model_max_length context_length",
    "schedule": "lr_scheduler_type lr_scheduler scheduler lr_decay_style",
    "warmup": "warmup_ratio warmup_steps num_warmup_steps lr_warmup_steps warmup",
    "decay": "weight_decay adam_weight_decay",
    "save": "save_steps save_strategy save_interval save_every checkpoint_every checkpoint_interval",
    "validate": "eval_steps eval_strategy evaluation_strategy do_eval eval_interval",
    "data": "dataset datasets dataset_name dataset_dir dataset_path data_path data_files train_file train_files train_data train_dataset",
    "heldout": "val_set_size val_size validation_split_percentage test_size eval_split",
    _ADAPTER: "lora peft adapter adapters qlora use_peft use_lora lora_config peft_config finetuning_type peft_method",
    "finetune.rank": "lora_r lora_rank peft_rank r",
    "finetune.alpha": "lora_alpha",
    "finetune.dropout": "lora_dropout",
    "finetune.rslora": "use_rslora peft_use_rslora",
    "finetune.dora": "use_dora peft_use_dora",
    "finetune.patience": "early_stopping_patience",
    "nowhere: the loss covers answers alone": "train_on_inputs train_on_prompt",
    "nowhere: the order follows from the seed": "group_by_length shuffle sampler sequential_sampler sample_packing_sequentially",
    "nowhere: a run begins with base.model, and finetune makes one adapter of it": "lora_model_dir adapter_name_or_path",
    "pretrain.faults.spike_ratio": "loss_watchdog_threshold loss_watchdog_patience",
    "seed": "random_seed",
    "finetune.neftune_alpha": "neftune_noise_alpha",
    "nowhere: the model's family says which layers an adapter changes": "lora_target lora_target_modules lora_target_linear target_modules",
    "finetune.quantization: 4bit": "load_in_4bit load_in_8bit quantization_bit bnb_4bit_compute_dtype quantization_config",
    _TRACKING: "report_to wandb wandb_project use_wandb use_tensorboard tensorboard swanlab comet logger mlflow mlflow_tracking_uri",
    "tracking.experiment": "experiment_name mlflow_experiment_name",
    "nowhere: a run is named by its start": "run_name",
    _SHARDING: "deepspeed deepspeed_config fsdp fsdp_config zero_stage zero_optimization ds_config accelerate ddp",
    "pretrain.parallelism.tensor": "tensor_parallel_size tensor_model_parallel_size tp_size",
    "pretrain.parallelism.pipeline": "pipeline_parallel_size pipeline_model_parallel_size pp_size",
    "pretrain.parallelism.context": "context_parallel_size sequence_parallel_size cp_size",
    "cluster.nodes, and cluster.instance for the GPUs of each": "num_nodes nnodes num_machines num_gpus n_gpus nproc_per_node num_processes",
    "pretrain.activation_checkpointing": "gradient_checkpointing activation_checkpointing enable_activation_checkpointing recompute",
    "pretrain.precision": "bf16 fp16 tf32 mixed_precision torch_dtype dtype precision",
    "nowhere: AdamW trains, with pretrain.betas and pretrain.weight_decay": "optim optimizer adam_beta1 adam_beta2 adam_epsilon",
    "pretrain.max_grad_norm": "max_grad_norm gradient_clipping grad_clip clip_grad",
    "pretrain.keep_checkpoints": "save_total_limit keep_last_n_checkpoints",
    "pretrain.log_every": "logging_steps log_interval logging_strategy",
    "storage.root": "output_dir out_dir save_dir logging_dir checkpoint_dir",
    "base.model": "model_name_or_path base_model model_name model pretrained_model_name_or_path model_id model_path model_type tokenizer_name tokenizer_name_or_path",
    "base.revision": "model_revision revision",
    "nowhere: the base's own template is used": "chat_template template",
    "nowhere: documents are always packed": "packing sample_packing neat_packing group_texts",
    "nowhere: the same command goes on from the last checkpoint": "resume_from_checkpoint resume",
    "nowhere: the fastest kernel of the device is taken": "flash_attention flash_attn use_flash_attention_2 attn_implementation flash_attention_2 fa2 xformers_attention sdp_attention s2_attention use_unsloth unsloth use_liger_kernel liger_kernel",
    "finetune.preference": "dpo rl dpo_beta pref_beta rlhf kto",
    "nowhere: anadil export writes the model for a hub": "push_to_hub hub_model_id hub_strategy",
    "language": "lang languages target_language",
    "evaluate.tasks": "eval_tasks lm_eval_tasks benchmarks",
    "evaluate.max_new_tokens": "max_new_tokens generation_max_length eval_max_new_tokens",
}  # fmt: skip
"""Key of a recipe, or a row of the table above -> the names that others give it.

Sources: transformers 5 `TrainingArguments`, PEFT `LoraConfig`, TRL `SFTConfig`, LLaMA-Factory `hparams`, Axolotl
`config-reference.md`, DeepSpeed `ds_config.json`, Megatron-LM and torchtune arguments.
"""


def name_here(word: str, section: str = "") -> str:
    """Recipe key for a setting of another trainer; empty where that is not known.

    The name may be in any style (`learningRate`, `learning-rate`); `section` is that of the recipe, where it stands.
    """
    plain = _plain(word)
    place = next((place for place, names in OTHER_NAMES.items() if plain in names.split()), "")
    if place not in TRAINED_TWICE:
        return place
    pretrain, finetune = TRAINED_TWICE[place]
    if section in ("pretrain", "finetune"):
        return pretrain if section == "pretrain" else finetune
    return f"{pretrain}, or for chats {finetune}"


def near_name(word: str) -> str:
    """The name of another trainer that a word is a slip of; empty where none is near."""
    names = [
        name for listed in OTHER_NAMES.values() for name in listed.split() if len(name) >= MIN_NEAR_CHARS
    ]
    return next(iter(difflib.get_close_matches(_plain(word), names, n=1, cutoff=NEAR_NAME)), "")


def _plain(word: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).replace("-", "_").lower()
