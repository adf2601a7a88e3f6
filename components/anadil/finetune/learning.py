"""Trained part of the model: a LoRA adapter with some rows of the embedding, or every weight."""

import logging
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, set_peft_model_state_dict
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors.torch import load_file
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel, PreTrainedTokenizerFast

from anadil.core.errors import PreflightError
from anadil.finetune.chat_format import chat_format
from anadil.finetune.write_model import ADAPTER
from anadil.model.kernels import keep_first_keys
from anadil.model.load import load_model, pick_dtype
from anadil.recipe.finetune import EmbeddingRows, Finetune
from anadil.runtime.job import Job

log = logging.getLogger(__name__)


def refuse_quantization(settings: Finetune, device: torch.device, processes: int = 1) -> None:
    """Refuse `quantization: 4bit` where it cannot run, before chats are read."""
    if settings.quantization == "none":
        return
    if processes > 1:
        raise PreflightError(
            f"finetune.quantization: 4bit holds the model on one GPU, and torchrun has started {processes} processes; "
            "start one, or set finetune.quantization to none"
        )
    if device.type != "cuda":
        raise PreflightError(
            "finetune.quantization: 4bit needs an NVIDIA GPU, and torch sees none here; "
            "run it on one, or set finetune.quantization to none"
        )


def load_for_training(job: Job, device: torch.device, path: Path | None = None) -> PreTrainedModel:
    """Load a model, by default that of the job, for training: frozen in the precision of its products, or in 4 bits."""
    settings, path = job.recipe.finetune, path or job.inputs["model"]
    # All weights learn in FP32, and autocast computes in BF16 on a GPU: most of AdamW's steps
    # are smaller than half the distance of neighbours in BF16, and would be lost.
    trains_all = settings.trains == "all"
    dtype = torch.float32 if trains_all else pick_dtype(device)
    model = load_model(
        path, dtype, nf4(dtype) if settings.quantization == "4bit" and not trains_all else None
    )
    keep_first_keys(model)
    return model


def nf4(dtype: torch.dtype) -> BitsAndBytesConfig:
    """4-bit NormalFloat with quantized constants. Source: QLoRA, arXiv:2305.14314, section 3."""
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )  # fmt: skip


def adapter_config(
    settings: Finetune, rows: EmbeddingRows, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> LoraConfig | None:
    """Return the adapter that the recipe asks for; None where all weights learn."""
    if settings.trains == "all":
        return None
    return LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, lora_dropout=settings.dropout, use_rslora=settings.rslora,
        use_dora=settings.dora, target_modules=linear_layers(model),
        trainable_token_indices=_token_indices(rows, model, tokenizer), task_type="CAUSAL_LM",
    )  # fmt: skip


def take_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Put the weights of an adapter of the same form into a model's."""
    loaded = set_peft_model_state_dict(model, load_file(folder / ADAPTER))
    assert not loaded.unexpected_keys, loaded.unexpected_keys


def linear_layers(model: Any) -> list[str]:
    """Return the names of the layers that get an adapter: every linear one but the head, in any family.

    Source: QLoRA, arXiv:2305.14314, section 4: adapters on all linear layers match full finetuning, on some do not.
    """
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    modules = {name: module for name, module in model.named_modules() if module not in tables}
    linear = {name for name, module in modules.items() if isinstance(module, nn.Linear)}
    others = sorted(
        f"{name}.{parameter}"
        for name, module in modules.items()
        if name not in linear
        for parameter, weight in module.named_parameters(recurse=False)
        if weight.dim() > 1
    )
    kind = model.config.model_type
    if not linear:
        raise PreflightError(
            f"finetune.trains: a {kind} model has no linear layers for an adapter; set it to all"
        )
    if others:
        log.warning(
            "the adapter of a %s model leaves out %d matrices that are not linear layers, such as %s; "
            "finetune.trains: all trains them too",
            kind, len(others), others[0],
        )  # fmt: skip
    return sorted({name.rpartition(".")[2] for name in linear})


def _token_indices(
    rows: EmbeddingRows, model: Any, tokenizer: PreTrainedTokenizerFast
) -> dict[str, list[int]] | None:
    # They are rows beside the matrix, written into it for each step and when the adapter is merged. PEFT's other
    # way, `modules_to_save`, unties the embedding from the head without a word.
    if rows == "none":
        return None
    ids = sorted(chat_format(tokenizer).control.values())
    if rows == "all":
        ids = list(range(max(tokenizer.get_vocab().values()) + 1))
    modules = {model.get_input_embeddings(): ids}
    if not model.config.tie_word_embeddings:
        # The head has rows of its own: without them the model would read <|eot_id|> and never write it.
        modules[model.get_output_embeddings()] = ids
    names = {module: name.rpartition(".")[2] for name, module in model.named_modules()}
    return {names[module]: ids for module, ids in modules.items()}


def prepare_rows(model: Any) -> None:
    """Make rows of the embedding that learn fit what TRL does with the model, before training."""
    # PEFT holds the adapter's matrices in FP32, but not always these: they start as copies of the model's rows, and
    # TRL rounds all that learns to BF16 where the model is quantized. Steps of 1e-4 on 0.02 would mostly be lost.
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "trainable_tokens_delta" in name:
            parameter.data = parameter.data.float()
    head = model.get_output_embeddings()
    if isinstance(head, AuxiliaryTrainingWrapper):
        # TRL's loss reads weight and bias of the head, and PEFT 0.21 passes on the weight alone. In `__dict__`,
        # because a bias would be saved a second time as a parameter of the wrapper.
        head.__dict__["bias"] = head.original_module.bias
