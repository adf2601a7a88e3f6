"""Time of finetuning and scoring on a CPU, where a run takes as long for them as for training."""

from collections.abc import Collection

from anadil.artifacts import storage
from anadil.core.errors import AnadilError
from anadil.plan.instances import CPU, Machine
from anadil.plan.model_shape import Shape
from anadil.plan.text_use import BYTES_PER_TOKEN, TextUse
from anadil.recipe.sections import Recipe

DECODE_SHARE = 0.4
"""Speed of decoding against that of training. Measured: 94 tokens a CPU second of 124M parameters, 82 of 135M, .27 of the peak."""
CHAT_BYTES = 212
"""Of a chat in its file, where chats are short questions with answers: 234 built-in ones are 49,540 bytes."""
SEEN_CHATS = 32
"""Most chats of training that are asked again (`anadil.finetune.rows`)."""
OWN_CHAT_TOKENS = 24 * 96
"""Most that a candidate writes in the base's own chat format (`anadil.evaluate.own_chat`)."""
CONTINUATIONS = 10
"""Texts that each candidate goes on with: five beginnings, greedily and by sampling (`anadil.evaluate.candidate`)."""
RETAINED_TOKENS = 2_000
"""Built-in English that each candidate is scored on."""


def seconds_after(
    shape: Shape, recipe: Recipe, machine: Machine, uses: Collection[TextUse], stages: Collection[str]
) -> float:
    """Seconds of `finetune` and `evaluate` at a CPU's peak in FP32; 0 on other machines."""
    if machine.device != CPU or not machine.flops_bf16:
        return 0.0
    chats = _tokens(recipe.finetune.inputs) if "finetune" in stages else 0.0
    learns = shape.flops_per_token(0, "all" if recipe.finetune.trains == "all" else "embeddings")
    flops = learns * recipe.finetune.epochs * chats
    if "evaluate" in stages:
        candidates = 2 + (recipe.merge is not None) + bool(chats)
        tokens = _scored_tokens(recipe, uses) + _written_tokens(recipe, chats) / DECODE_SHARE
        flops += candidates * shape.flops_per_token(0) / 3 * tokens
    return flops / machine.flops_bf16


def _scored_tokens(recipe: Recipe, uses: Collection[TextUse]) -> float:
    share, targets = recipe.clean.heldout_fraction, recipe.target_sources or ("",)
    heldout = share / (1 - share) * sum(each.tokens for each in uses if each.source in targets)
    return RETAINED_TOKENS + (_tokens(recipe.evaluate.heldout) or heldout)


def _written_tokens(recipe: Recipe, chats: float) -> float:
    settings, num_chats = recipe.evaluate, chats * BYTES_PER_TOKEN / CHAT_BYTES
    unseen = _tokens(settings.questions) * BYTES_PER_TOKEN / CHAT_BYTES
    asked = min(settings.max_questions, unseen or num_chats * recipe.finetune.heldout_fraction)
    asked += min(settings.max_questions, num_chats, SEEN_CHATS)
    return OWN_CHAT_TOKENS + (CONTINUATIONS + asked) * settings.max_new_tokens


def _tokens(files: Collection[str]) -> float:
    """Tokens of files of text or chats by their sizes; 0 of those that are not seen from here."""
    try:
        near = [each for each in files if "://" not in each]
        return sum(storage.sizes(near, "finetune.inputs").values()) / BYTES_PER_TOKEN
    except AnadilError:
        return 0.0
