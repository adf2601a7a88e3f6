"""Load of the experts of a mixture: tokens that each gets in a step that is logged, over all processes."""

import logging
from typing import Any

import torch
from torch import nn

from anadil.model.architecture import LAYER
from anadil.pretrain.callback import Callback, Section
from anadil.pretrain.state import Step

log = logging.getLogger(__name__)


class ExpertLoad(Callback):
    """Counts tokens by layer and expert, which costs nothing in other steps."""

    def __init__(self) -> None:
        self._counts: torch.Tensor | None = None
        self._is_open = False
        self._hooks: list[Any] = []

    def pre_train(self) -> None:
        """Watch the experts of this process; a dense model has none."""
        net = self.training.trainer.net
        experts = {name: each for name, each in net.model.named_modules() if name.endswith(".experts")}
        if experts and self.training.job.recipe.pretrain.compile:
            # Compiled twice, with and without counting, layers would take minutes more.
            log.info("pretrain.compile: load of the experts is not measured")
            return
        # A stage of a pipeline has some of the layers, and all processes add up one table.
        numbers = [
            int(number[1]) for name in net.shapes if ".experts." in name and (number := LAYER.search(name))
        ]
        if not numbers:
            return
        num = max(shape[0] for name, shape in net.shapes.items() if ".experts." in name)
        self._counts = torch.zeros(max(numbers) + 1, num, dtype=torch.int64, device=net.device)
        for name, module in experts.items():
            number = LAYER.search(name)
            assert number is not None
            self._hooks.append(module.register_forward_pre_hook(self._counted(int(number[1]))))

    def on_section(self, section: Section) -> None:
        """Count in the passes of a step that is logged."""
        self._is_open = section == "forward" and self.training.gets_line(self.training.state.step + 1)

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Add up and record."""
        if self._counts is None or not self.training.gets_line(self.training.state.step):
            return
        counts = self.training.trainer.net.add_up(self._counts).double()
        self._counts = torch.zeros_like(self._counts)
        counts = counts[counts.sum(1) > 0]  # layers may have no experts
        loads = counts / counts.mean(1, keepdim=True)
        self.training.figures["expert_load_max"] = loads.max().item()
        self.training.figures["experts_idle"] = int((counts == 0).sum())

    def close(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()

    def _counted(self, layer: int) -> Any:
        def count(_module: nn.Module, given: tuple[Any, ...]) -> None:
            if self._is_open and self._counts is not None:
                chosen = given[1].flatten()
                self._counts[layer].scatter_add_(0, chosen, torch.ones_like(chosen))

        return count
