"""The trainer: one optimizer step at a time, with its phase, its learning rate and its sequences."""

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from anadil.model.process_group import Group
from anadil.pretrain import optimizer as optimizers
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.data.order import TrainingData
from anadil.pretrain.lr_schedule import phase_of, rate_factor
from anadil.pretrain.parallel.fsdp import Replicas, clip_, local_gradient, local_rows, squared_norm
from anadil.pretrain.parallel.parallelize import ParallelModel
from anadil.pretrain.state import SourceLoss, Step
from anadil.recipe.sections import Recipe
from anadil.tokens.packing import Sequences

Batches = Sequence[Batch]
"""One for each micro-batch of a step."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Trainer:
    """The model, its optimizer, and the data that each step takes."""

    def __init__(self, net: ParallelModel, data: TrainingData, recipe: Recipe, group: Group) -> None:
        """Train `net` on the sequences of `data` by the recipe."""
        self.net, self.data, self.group = net, data, group
        self.settings, self.seed = recipe.pretrain, recipe.seed
        self.device, self.dtype = net.device, net.dtype
        self.parameters = net.parameters()
        self.optimizer: torch.optim.Optimizer | None = None
        self.micro_batch_size = recipe.pretrain.micro_batch_size
        """Sequences of a micro-batch; less than the recipe's after a process ran out of memory."""
        self.batch_of: Callable[[int], int] = lambda step: step
        """Number of the batch that a step takes, both from 0: batches may be skipped."""
        self.collective_wait: Callable[[], AbstractContextManager[object]] = nullcontext
        """Entered where this process waits for others."""
        self.warmups: Mapping[int, int] = {}
        """Steps of the warm-up by phase, where they are not the recipe's: see `Branch.warmup`."""
        self.new_rows: Sequence[int] = ()
        """Rows of the embeddings that `trains: new_rows` changes."""
        self._learning: Mapping[torch.nn.Parameter, torch.Tensor] = {}
        self._unseen = np.array([], dtype=np.int64)
        self._seen_until = -1
        self._replicas: Replicas | None = None

    def begin_phase(self, number: int) -> None:
        """Freeze the parameters that the phase (from 0) does not train, then make an optimizer for the rest."""
        if self._replicas is not None:
            self._replicas.remove()
        if self.optimizer is not None:
            # The last phase's moments go before the next ones come: both together may not fit.
            optimizers.free_state(self.optimizer)
        chosen = [name for name in self.parameters if self._is_trained(name, number)]
        optimizers.train_only(self.parameters, chosen)
        phase = self.settings.phases[number]
        self.optimizer = optimizers.make_optimizer(self.parameters, phase, self.settings, self.net.tables)
        self._replicas = Replicas(self._trained(), self.net.replicas_group())
        self._learning, self._seen_until = {}, -1
        if phase.trains == "new_rows":
            self._learning = {each: local_rows(each, self.new_rows) for each in self._trained()}
        # Phases train different parameters, so each has a peak of its own.
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def batches(self, step: int) -> Batches:
        """Make this process's micro-batches of an optimizer step (from 0), equally many in every process."""
        mesh, size = self.net.mesh, self.micro_batch_size
        sequences = self.sequences(step)
        mine = sequences[mesh.data_rank :: mesh.data]
        most = -(-len(sequences) // mesh.data)
        micro = [mine[at : at + size] for at in range(0, most, size)]
        # A sharded model is gathered in each pass, so a process without sequences passes an empty row too.
        # A pipeline needs equal shapes.
        rows = min(size, most) if mesh.pipeline > 1 else 1
        return [self.net.share(self.data.batch_of(each, rows=rows)) for each in micro]

    def gradients(self, step: int, batches: Batches | None = None, received: int = 0) -> Step:
        """Sum the gradients of an optimizer step (from 0) and clip them, for `apply`.

        Without `batches` they are made now. `received` is a signal to this process; 0 for none.
        """
        assert self.optimizer is not None
        assert self._replicas is not None
        number, within = phase_of(step, self.settings.phases)
        phase = self.settings.phases[number]
        if phase.trains == "new_rows":
            self._see_rows(step - within, step)
        factor = rate_factor(within, phase, self.settings, self.warmups.get(number))
        optimizers.set_rates(self.optimizer, factor)
        # Freed, not filled with zeros: else they lie beside the activations of the forward pass.
        self.optimizer.zero_grad(set_to_none=True)
        # The divisor is that of the whole batch: then neither accumulation nor the number of
        # processes changes the gradient.
        by_source = self.data.targets_by_source(self.sequences(step))
        tokens = sum(by_source)
        batches = self.batches(step) if batches is None else batches
        names = self.data.names
        of_sources = torch.zeros(len(names), dtype=torch.float64, device=self.device)
        self.net.objective.by_source = of_sources if names else None
        objective = self.net.objective
        objective.divergence = torch.zeros(2, dtype=torch.float64, device=self.device)
        mine = self.net.backward(batches, tokens, replicas=self._replicas)
        with self.collective_wait():
            self._replicas.wait()
            for parameter, rows in self._learning.items():
                if parameter.grad is not None:
                    local_gradient(parameter).mul_(rows)
            gradients, square = squared_norm(
                self._trained(), self.net.mesh, on_two_stages=self.net.on_two_stages()
            )
            # One collective and one wait for the device: a signal that only one process has must end all at the same step.
            sums = torch.zeros(4 + len(SIGNALS) + len(names), dtype=torch.float64, device=self.device)
            sums[0] = square
            if self.net.counts:
                sums[1] = mine
                sums[4 + len(SIGNALS) :] = of_sources
                # Curves of runs with and without a teacher compare.
                sums[1] -= objective.teacher_weight * objective.divergence[0]
                sums[2:4] = objective.divergence
            if received in SIGNALS:
                sums[4 + SIGNALS.index(received)] = 1
            square_of_all, loss, divergence, positions, *others = self.net.add_up(sums).tolist()
            counts, nats = others[: len(SIGNALS)], others[len(SIGNALS) :]
            agreed = next((number for number, count in zip(SIGNALS, counts, strict=True) if count), 0)
            norm = math.sqrt(square_of_all)
            clip_(gradients, norm, self.settings.max_grad_norm)
        if self._learning:
            # A row that a step does not meet has a small gradient, as a wrong answer. Adam would make a whole step of it,
            # and rare tokens would forget what they mean: with the root mean square of the gradient as its epsilon, a
            # step is as small as its gradient.
            numbers = self.num_trainable(number)
            optimizers.set_eps(self.optimizer, min(norm, self.settings.max_grad_norm) / math.sqrt(numbers))
        rate = phase.lr * factor
        sources = {
            name: SourceLoss(tokens=count, nats=total)
            for name, count, total in zip(names, by_source, nats, strict=False)
        }
        return Step(
            phase=number, loss=loss / tokens, lr=rate, grad_norm=norm, tokens=tokens, signal=agreed, sources=sources,
            divergence=SourceLoss(tokens=int(positions), nats=divergence),
        )  # fmt: skip

    def apply(self) -> None:
        """Change the parameters by their gradients."""
        assert self.optimizer is not None
        self.optimizer.step()
        self.net.after_step()

    def sequences(self, step: int) -> Sequences:
        """Choose the packed sequences of an optimizer step (from 0), over all processes."""
        return self.data.sequences_of_batch(
            self.batch_of(step), batch_size=self.settings.batch_size, seed=self.seed
        )

    def peak_memory(self) -> int | None:
        """Peak bytes of tensors on this process's GPU in the current phase; None on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    def num_trainable(self, phase: int) -> int:
        """Trainable parameters of the whole model in a phase (from 0)."""
        shapes = self.net.shapes
        if self.settings.phases[phase].trains == "new_rows":
            return sum(len(self.new_rows) * shapes[name][1] for name in shapes if name in self.net.tables)
        return sum(math.prod(shapes[name]) for name in shapes if self._is_trained(name, phase))

    def tensors(self, *, moments: bool) -> dict[str, torch.Tensor]:
        """Tensors of a checkpoint by name: parameters, tied ones once, and with `moments` the optimizer's."""
        tensors = self.net.plain_tensors()
        if moments:
            assert self.optimizer is not None
            tensors |= optimizers.state_tensors(self.optimizer, self.parameters)
        return tensors

    def allocate(self, step: int) -> None:
        """Allocate moments to load into, as after optimizer step `step` of all phases."""
        assert self.optimizer is not None
        optimizers.allocate_state(self.optimizer)
        self.set_step(step)

    def set_step(self, step: int) -> None:
        """Set the optimizer's step count to that after optimizer step `step` of all phases."""
        assert self.optimizer is not None
        optimizers.set_step(self.optimizer, phase_of(step, self.settings.phases)[1])

    @property
    def rows_unseen(self) -> int:
        """Rows of new tokens that no batch of a phase of new_rows has held so far."""
        return len(self._unseen)

    def _see_rows(self, begin: int, step: int) -> None:
        """Count the rows whose token no batch of the phase, which began with step `begin`, has held.

        They learn too, as wrong answers. Rows that stayed as they were kept too much probability: .11 bits per byte worse
        in the demo, with 591 of 4,096 rows unseen.
        """
        # After a resume, and after batches that are skipped, the batches before are read again: no state has to hold them.
        if self._seen_until != step:
            self._unseen, self._seen_until = np.array(self.new_rows), begin
        for each in range(self._seen_until, step + 1):
            self._unseen = self._unseen[~np.isin(self._unseen, self.data.tokens_of(self.sequences(each)))]
        self._seen_until = step + 1

    def _trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.parameters.values() if parameter.requires_grad]

    def _is_trained(self, name: str, phase: int) -> bool:
        return self.settings.phases[phase].trains == "all" or name in self.net.tables
