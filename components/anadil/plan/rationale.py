"""Rationale for each setting of a plan, with the rejected alternatives."""

from dataclasses import dataclass, replace

from anadil.core.format import human_bytes, human_parameters
from anadil.plan.instances import CPU, Machine
from anadil.plan.layout import Layout, Work
from anadil.plan.memory_limit import layout_fit
from anadil.plan.model_shape import Shape
from anadil.plan.search import RECOMPUTE, divisors
from anadil.plan.speed import speed

LARGE_MODEL = 14e9
"""Parameters from which activation checkpointing is a prerequisite on 8 GPUs and FP8 the balanced
precision. Source: AWS Machine Learning Blog on training with Blackwell on SageMaker AI."""
FP8_DEVICES = ("H100", "H200", "B200", "B300")
BLOCK_SCALED_DEVICES = ("B200", "B300")
"""Devices with MXFP8 and NVFP4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rationale:
    """One setting, and why it has its value."""

    setting: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRationale:
    """Explains the settings of a layout."""

    shape: Shape
    layout: Layout
    work: Work
    machine: Machine
    nodes: int

    def settings(self) -> tuple[Rationale, ...]:
        """Every setting, in the order in which one decides them."""
        return (
            self._parallelism(),
            self._batch(),
            self._recompute(),
            self._precision(),
            self._state(),
            self._kernels(),
        )

    def _figures(self, layout: Layout, work: Work | None = None) -> str:
        """Memory and speed of a variant."""
        work = work or self.work
        total, verdict = layout_fit(self.shape, layout, work, self.machine)
        text = human_bytes(total)
        if verdict == "no":
            return f"{text}, does not fit"
        if not (self.machine.flops_bf16 and self.machine.hbm):
            return text
        rate = speed(self.shape, layout, work, self.machine, self.nodes).tokens_per_s_per_device
        return f"{text}, {rate:,.0f} tokens/s"

    def _parallelism(self) -> Rationale:
        layout = self.layout
        group = layout.data * layout.context
        plain = replace(layout, shard=1)
        if layout.devices == 1:
            why = "there is one device"
        elif layout.shard == 1 and layout.devices == group:
            whole = replace(layout, shard=group)
            why = (
                f"a copy on each device: {self._figures(layout)} a device; shared by all {group} (FSDP): "
                f"{self._figures(whole)}"
            )
        else:
            why = (
                f"{self._figures(layout)} a device; with a copy of the parameters on each data-parallel device "
                f"{self._figures(plain)}"
            )
            if layout.tensor > 1:
                why += f"; tensor parallel stays within a machine's {self.machine.devices} devices"
        return Rationale(setting="parallelism", value=layout.name(), why=why)

    def _batch(self) -> Rationale:
        layout = self.layout
        local = layout.micro_batch_size * layout.micro_batches
        others = [size for size in divisors(local) if size != layout.micro_batch_size]
        below = max((size for size in others if size < layout.micro_batch_size), default=None)
        above = min((size for size in others if size > layout.micro_batch_size), default=None)
        variants = [f"{layout.micro_batch_size}: {self._figures(layout)}"]
        variants += [
            f"{size}: {self._figures(replace(layout, micro_batch_size=size, micro_batches=local // size))}"
            for size in (below, above)
            if size is not None
        ]
        why = (
            "batch first: larger micro-batches make larger matrix products and gather weights less often, "
            f"so the largest that pays is taken before anything else; of the divisors of {local}, "
            + "; ".join(variants)
        )
        value = f"{layout.micro_batch_size} x {layout.micro_batches}"
        return Rationale(setting="micro-batch", value=value, why=why)

    def _recompute(self) -> Rationale:
        variants = "; ".join(
            f"{each}: {self._figures(replace(self.layout, recompute=each))}" for each in RECOMPUTE
        )
        size = f"{human_parameters(self.shape.parameters)} here"
        rule = (
            f"below about {human_parameters(LARGE_MODEL)} it is generally not needed ({size})"
            if self.shape.parameters < LARGE_MODEL
            else f"from about {human_parameters(LARGE_MODEL)} it is a prerequisite ({size})"
        )
        why = f"10-30 % more compute for much less memory; {rule}; {variants}"
        return Rationale(setting="activation checkpointing", value=self.layout.recompute, why=why)

    def _precision(self) -> Rationale:
        name = self.machine.device.split()[0]
        if self.work.compute == "fp32":
            why = "this CPU has no BF16 products of its own"
            if self.machine.device != CPU:
                why = "asked for; bf16 is what the device's matrix units are for"
            return Rationale(setting="precision", value="fp32", why=why)
        if self.machine.device == CPU:
            why = "this CPU has BF16 products of its own, 2.0 to 2.7 times as fast as FP32 at 135M parameters"
            return Rationale(setting="precision", value="bf16", why=why)
        why = "primary weights stay in high precision, so lower ones raise throughput and save no memory"
        if name not in FP8_DEVICES:
            why += f"; {name} has no FP8"
        elif self.shape.parameters < LARGE_MODEL:
            others = "FP8, MXFP8 and NVFP4" if name in BLOCK_SCALED_DEVICES else "FP8"
            why += f"; below {human_parameters(LARGE_MODEL)} the gains of {others} are modest and alike: if any, start with FP8"
        else:
            why += f"; from {human_parameters(LARGE_MODEL)} FP8 is the balance"
            if name in BLOCK_SCALED_DEVICES:
                why += ", MXFP8 where accuracy matters, NVFP4 only with a validated recipe"
        if name in FP8_DEVICES:
            why += "; compare loss curves before production, so a plan does not switch it on"
        return Rationale(setting="precision", value="bf16", why=why)

    def _state(self) -> Rationale:
        parameters = self.shape.parameters
        per_number = {"fp32": 16, "bf16": 8}
        variants = "; ".join(
            f"{state}: {human_bytes(size * parameters / self.layout.shard / self.layout.tensor / self.layout.pipeline)}"
            for state, size in per_number.items()
        )
        why = (
            f"weights, gradients and moments a device, {variants}; bf16 is what was published and loses updates "
            "that are small against the weight"
        )
        return Rationale(setting="state", value=self.work.state, why=why)

    def _kernels(self) -> Rationale:
        if self.machine.device == CPU:
            return Rationale(setting="kernels", value="torch", why="Liger's kernels need a GPU")
        variants = "; ".join(
            f"{name}: {self._figures(self.layout, replace(self.work, kernels=name))}"
            for name in ("liger", "torch")
        )
        why = f"fused norms, rotation, SwiGLU and loss keep less and move less; {variants}"
        return Rationale(setting="kernels", value=self.work.kernels, why=why)
