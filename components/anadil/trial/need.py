"""Compute of `trial` before training, for the planner."""

from anadil.estimate.stage_memory import NeedRequest


def share_before(request: NeedRequest) -> float:
    """Compute as a share of that of training: each finalist has that of the trial's steps with the base's vocabulary."""
    finalists, steps = _size(request)
    context = request.recipe.pretrain.sequence_length
    ratio = request.base.flops_per_token(context) / request.trained.flops_per_token(context)
    return finalists * steps * ratio / sum(phase.steps for phase in request.recipe.pretrain.phases_left)


def assumption(request: NeedRequest) -> str:
    """Sentence among the assumptions of a plan."""
    finalists, steps = _size(request)
    return (
        f"Time and cost count the trial of {finalists} tokenizers, one after another, for {steps:,} steps of the base's "
        "compute each."
    )


def _size(request: NeedRequest) -> tuple[int, int]:
    settings = request.recipe.tokenizer
    assert settings.trial is not None  # a recipe without it leaves the stage out
    return len(set(settings.trial.strategies or settings.strategies)), settings.trial.steps
