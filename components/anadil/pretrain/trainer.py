"""One optimizer step at a time: what is trained, at which rate, on which sequences."""

import signal
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from anadil.config import Recipe
from anadil.errors import RecipeError
from anadil.model.load import cast_parameters, pick_dtype
from anadil.model.loss import summed_loss
from anadil.model.recompute import checkpoint_layers, decoder_layers
from anadil.pretrain.checkpoint import Tensors
from anadil.pretrain.packing import Packed, batch_of, sequences_of_step
from anadil.pretrain.parallel.group import Group
from anadil.pretrain.probe import last_hidden
from anadil.pretrain.schedule import learning_rate, phase_of
from anadil.pretraining import Phase

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps of each parameter."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Figures of one optimizer step, the same on every process."""

    phase: int
    loss: float
    """Mean nats per target token of the whole batch."""
    lr: float
    grad_norm: float
    """Before clipping."""
    tokens: int
    """Target tokens of the whole batch."""
    signal: int
    """A signal that some process has received; 0 for none."""


class Trainer:
    """The model, its optimizer, and the data that each step takes."""

    def __init__(self, model: PreTrainedModel, packed: Packed, recipe: Recipe, group: Group) -> None:
        """Make a model in FP32 ready to be trained as the recipe says; it is changed in place."""
        # Without dropout: eval mode. So no random number is drawn, and a resume needs none.
        self.model = model.eval()
        self.packed = packed
        self.group = group
        self.settings = recipe.pretrain
        self.seed = recipe.seed
        self.device = next(model.parameters()).device
        self.dtype = pick_dtype(recipe.pretrain.precision, self.device)
        if self.settings.state == "bf16":
            # Gradients and moments follow the weights, and so do matrix products, without autocast.
            self.dtype = torch.bfloat16
            cast_parameters(model, self.dtype)
        if self.settings.activation_checkpointing != "none":
            checkpoint_layers(decoder_layers(model), self.settings.activation_checkpointing)
        self.parameters = dict(model.named_parameters())
        self.optimizer: torch.optim.Optimizer | None = None

    def begin_phase(self, phase: Phase) -> None:
        """Freeze what the phase does not train, then make an optimizer for the rest."""
        chosen = trainable(self.model, phase)
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name in chosen)
            parameter.grad = None
        matrices = [self.parameters[name] for name in chosen if self.parameters[name].ndim >= 2]
        vectors = [self.parameters[name] for name in chosen if self.parameters[name].ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": self.settings.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=phase.lr,
            betas=self.settings.betas,
            fused=self.device.type == "cuda",
        )
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def step(self, step: int, received: int = 0) -> Step:
        """Train on the sequences of an optimizer step (from 0).

        Args:
            step: Number of the step.
            received: Signal that this process has received; 0 for none.

        Raises:
            RecipeError: The loss or a gradient is no number any more.
        """
        assert self.optimizer is not None
        number, within = phase_of(step, self.settings.phases)
        phase = self.settings.phases[number]
        lr = learning_rate(within, phase, self.settings)
        for entry in self.optimizer.param_groups:
            entry["lr"] = lr
        # Freed, not filled with zeros: else they lie beside the activations of the forward pass.
        self.optimizer.zero_grad(set_to_none=True)
        loss, tokens, agreed = self._gradients(step, received)
        trained = [parameter for parameter in self.parameters.values() if parameter.requires_grad]
        norm = float(nn.utils.clip_grad_norm_(trained, self.settings.max_grad_norm))
        if not (np.isfinite(loss) and np.isfinite(norm)):
            raise RecipeError(
                f"pretrain: loss {loss:.4g}, gradient norm {norm:.4g} at step {step + 1} with learning rate "
                f"{lr:.3g}; lower pretrain.phases[{number}].lr ({phase.lr:g}) and run again "
                "(the checkpoint before it is kept)"
            )
        self.optimizer.step()
        return Step(phase=number, loss=loss, lr=lr, grad_norm=norm, tokens=tokens, signal=agreed)

    def _gradients(self, step: int, received: int) -> tuple[float, int, int]:
        """Sum the gradients of the whole batch; loss per token, tokens and signal over all processes."""
        sequences = sequences_of_step(
            step,
            batch_size=self.settings.batch_size,
            num_sequences=self.packed.num_sequences,
            seed=self.seed,
        )
        # The divisor is that of the whole batch: then neither accumulation nor the number of
        # processes changes the gradient.
        tokens = self.packed.targets_of(sequences)
        mine = sequences[self.group.rank :: self.group.size]
        # Loss, then the signals in SIGNALS: one exchange for all three.
        sums = torch.zeros(1 + len(SIGNALS), dtype=torch.float64, device=self.device)
        for at in range(0, len(mine), self.settings.micro_batch_size):
            sums[0] += self._backward(mine[at : at + self.settings.micro_batch_size], tokens)
        # A parameter may be without gradient here and have one in another process: then it is zero.
        gradients = []
        for parameter in self.parameters.values():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients.append(parameter.grad)
        if received in SIGNALS:
            sums[1 + SIGNALS.index(received)] += 1
        self.group.sum_([*gradients, sums])
        loss, *counts = sums.tolist()
        agreed = [number for number, count in zip(SIGNALS, counts, strict=True) if count]
        return loss / tokens, tokens, agreed[0] if agreed else 0

    def _backward(self, sequences: np.ndarray[Any, Any], tokens: int) -> torch.Tensor:
        batch = batch_of(self.packed, sequences)
        head: Any = self.model.get_output_embeddings()
        mixed = self.dtype == torch.bfloat16 and self.settings.state == "fp32"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=mixed):
            # The states have no name here, which would keep them through the backward pass.
            loss = summed_loss(
                last_hidden(self.model, batch.input_ids.to(self.device), batch.position_ids.to(self.device)),
                head.weight,
                batch.labels.to(self.device),
                kernels=self.settings.kernels,
            )
        (loss / tokens).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss.detach()

    def peak_memory(self) -> int | None:
        """Most bytes that this process's GPU held for tensors in the current phase; None on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    def num_trainable(self, phase: Phase) -> int:
        """Numbers that a phase trains."""
        return sum(self.parameters[name].numel() for name in trainable(self.model, phase))

    def model_tensors(self) -> Tensors:
        """Parameters by name; tied ones once."""
        return {name: parameter.detach().cpu() for name, parameter in self.parameters.items()}

    def optimizer_tensors(self) -> Tensors:
        """Moments as `<moment> <parameter>`."""
        assert self.optimizer is not None
        return {
            f"{moment} {name}": self.optimizer.state[parameter][moment].detach().cpu()
            for name, parameter in self.parameters.items()
            if parameter in self.optimizer.state
            for moment in MOMENTS
        }

    def restore_model(self, tensors: Tensors) -> None:
        """Put parameters back; on the first process `tensors`, which the others get from it."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if self.group.is_first:
                    parameter.copy_(tensors[name])
        self.group.copy_from_first_([parameter.data for parameter in self.parameters.values()])

    def restore_optimizer(self, tensors: Tensors) -> None:
        """Put the moments of the current phase back; on the first process `tensors`, see above."""
        assert self.optimizer is not None
        restored = []
        for name, parameter in self.parameters.items():
            if parameter.requires_grad:
                state = {
                    "step": torch.zeros((), dtype=torch.float32, device=self.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
                if self.group.is_first:
                    for moment, tensor in state.items():
                        tensor.detach().copy_(tensors[f"{moment} {name}"])
                self.optimizer.state[parameter] = state
                restored += list(state.values())
        self.group.copy_from_first_(restored)


def trainable(model: PreTrainedModel, phase: Phase) -> list[str]:
    """Names of the parameters that a phase trains."""
    if phase.trains == "all":
        return [name for name, _ in model.named_parameters()]
    tables: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
    kept = {id(table.weight) for table in tables}
    return [name for name, parameter in model.named_parameters() if id(parameter) in kept]
