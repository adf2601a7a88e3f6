"""Memory and time of `evaluate`, for the planner and the check before a start."""

from anadil.core.candidates import CANDIDATES
from anadil.core.stages import WRITERS
from anadil.estimate import stage_memory
from anadil.estimate.text_use import BYTES_PER_TOKEN, DOCUMENT_BYTES
from anadil.runtime.job import is_left_out

DECODE_SHARE = 0.4
"""Speed of decoding over the speed of training. Measured: 94 tokens a CPU second of 124M parameters, 82 of 135M, .27 of the peak."""
CHAT_BYTES = 212
"""Bytes of a chat in its file, where chats are short questions with answers: 234 built-in ones are 49,540 bytes."""
RETAINED_TOKENS, OWN_CHAT_TOKENS, CONTINUATIONS, SEEN_CHATS = 2_000, 24 * 96, 10, 32
"""English that each candidate is scored on, most that a candidate writes in the base's own chat format, continued texts, and
most chats of training that are asked again. Source: `anadil.evaluate`, `anadil.finetune.rows`."""
REFUSAL_TOKENS = 120 * (24 + DECODE_SHARE * 2 * 50)
"""Tokens of two languages' requests that weigh as written ones: answers, and two beginnings behind each question."""

MADE_TOKENS = 360
"""Tokens of an item of each kind made of held-out text, with all its choices. Measured: 71,000 of 200 of each, Finnish, tokens of
a vocabulary of 2,048."""


def need(request: stage_memory.NeedRequest) -> stage_memory.StageMemory:
    """Memory of the stage, of the model that pre-training makes."""
    return stage_memory.scoring_plan(request.trained, request.recipe, request.machine, "evaluate")


def refusal(request: stage_memory.NeedRequest, memory: stage_memory.StageMemory) -> str:
    """Text of the refusal where the stage does not fit."""
    remedy = "or end before it: --until pretrain (of run and of plan)"
    return stage_memory.scoring_refusal(request.trained, memory, request.machine, remedy)


def flops(request: stage_memory.NeedRequest) -> float:
    """Floating-point operations of the stage: every candidate scores texts and writes answers."""
    recipe, uses, settings = request.recipe, request.text.uses, request.recipe.evaluate
    made = [each.kind for each in CANDIDATES if each.kind in WRITERS]
    candidates = 1 + sum(not is_left_out(WRITERS[kind], recipe) for kind in made)
    share, targets = recipe.clean.heldout_fraction, recipe.target_sources or ("",)
    heldout = share / (1 - share) * sum(each.tokens for each in uses if each.source in targets)
    most = recipe.clean.heldout_max_documents * DOCUMENT_BYTES / BYTES_PER_TOKEN
    scored = RETAINED_TOKENS + (stage_memory.tokens_of_files(settings.heldout) or min(heldout, most))
    scored += MADE_TOKENS * settings.made_items
    chat, chats = CHAT_BYTES / BYTES_PER_TOKEN, stage_memory.tokens_of_files(recipe.finetune.inputs)
    unseen = stage_memory.tokens_of_files(settings.questions) or chats * recipe.finetune.heldout_fraction
    asked = min(settings.max_questions, unseen / chat) + min(settings.max_questions, chats / chat, SEEN_CHATS)
    written = OWN_CHAT_TOKENS + REFUSAL_TOKENS + (CONTINUATIONS + asked) * settings.max_new_tokens
    return candidates * request.trained.flops_per_token(0) / 3 * (scored + written / DECODE_SHARE)


NEEDS = stage_memory.Needs(need=need, refusal=refusal, flops=flops)
