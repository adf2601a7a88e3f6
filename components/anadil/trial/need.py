"""Compute of `trial` before training, for the planner."""

from anadil.estimate.stage_memory import NeedRequest, Needs


def before(request: NeedRequest) -> tuple[float, str]:
    """Compute as a share of that of training, and the sentence of it: the base's vocabulary learns in each finalist."""
    settings, context = request.recipe.tokenizer, request.recipe.pretrain.sequence_length
    assert settings.trial is not None  # a recipe without it leaves the stage out
    finalists, steps = len(set(settings.trial.strategies or settings.strategies)), settings.trial.steps
    ratio = request.base.flops_per_token(context) / request.trained.flops_per_token(context)
    share = finalists * steps * ratio / sum(phase.steps for phase in request.recipe.pretrain.phases_left)
    return share, (
        f"Time and cost count the trial of {finalists} tokenizers, one after another, for {steps:,} steps of the base's "
        "compute each."
    )


NEEDS = Needs(before=before)
