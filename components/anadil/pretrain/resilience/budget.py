"""The end of a run whose hours or money are used up."""

from anadil.pretrain.callback import Callback
from anadil.pretrain.trainer import Step


class BudgetGuard(Callback):
    """Ends a run, saved, when `pretrain.faults.budget_hours` or `budget_usd` is used up."""

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Compare the first process's clock with the budget at each logged step."""
        run = self.training
        if run.is_log_due:
            # One clock decides for all: they would not agree on the step.
            spent = run.metrics.budget.reached(run.metrics.goodput.running_s)
            run.spent = run.group.gather(spent or "")[0]
