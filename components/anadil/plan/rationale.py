"""Rationale for each setting of a plan, with the rejected alternatives."""

from dataclasses import dataclass, replace

from anadil.core.format import human_bytes, human_parameters
from anadil.plan.instances import CPU, Machine
from anadil.plan.layout import KERNELS, Layout, Work
from anadil.plan.memory import layout_fit
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
        layout, work = self.layout, self.work
        batch = f"{layout.micro_batch_size} x {layout.micro_batches}"
        return (
            Rationale(setting="parallelism", value=layout.name(), why=self._parallelism()),
            Rationale(setting="micro-batch", value=batch, why=self._batch()),
            Rationale(setting="activation checkpointing", value=layout.recompute, why=self._recompute()),
            Rationale(setting="precision", value=work.compute, why=self._precision()),
            Rationale(setting="state", value=work.state, why=self._state()),
            Rationale(setting="kernels", value=work.kernels, why=self._kernels()),
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

    def _parallelism(self) -> str:
        layout = self.layout
        group = layout.data * layout.context
        if layout.devices == 1:
            return "there is one device"
        if layout.shard == 1 and layout.devices == group:
            return (
                f"a copy on each device: {self._figures(layout)} a device; shared by all {group} (FSDP): "
                f"{self._figures(replace(layout, shard=group))}"
            )
        why = (
            f"{self._figures(layout)} a device; with a copy of the parameters on each data-parallel device "
            f"{self._figures(replace(layout, shard=1))}"
        )
        if layout.tensor > 1:
            why += f"; tensor parallel stays within a machine's {self.machine.devices} devices"
        return why

    def _batch(self) -> str:
        layout, size = self.layout, self.layout.micro_batch_size
        local = size * layout.micro_batches
        sizes = divisors(local)
        # A batch that does not divide evenly is none of the divisors.
        near = [
            size,
            *[each for each in sizes if each < size][-1:],
            *[each for each in sizes if each > size][:1],
        ]
        variants = "; ".join(
            f"{each}: {self._figures(replace(layout, micro_batch_size=each, micro_batches=local // each))}"
            for each in near
        )
        return (
            "batch first: larger micro-batches make larger matrix products and gather weights less often, "
            f"so the largest that pays is taken before anything else; of the divisors of {local}, {variants}"
        )

    def _recompute(self) -> str:
        variants = "; ".join(
            f"{each}: {self._figures(replace(self.layout, recompute=each))}" for each in RECOMPUTE
        )
        size, limit = human_parameters(self.shape.parameters), human_parameters(LARGE_MODEL)
        rule = f"from about {limit} it is a prerequisite"
        if self.shape.parameters < LARGE_MODEL:
            rule = f"below about {limit} it is generally not needed"
        return f"10-30 % more compute for much less memory; {rule} ({size} here); {variants}"

    def _precision(self) -> str:
        name, limit = self.machine.device.split()[0], human_parameters(LARGE_MODEL)
        if self.machine.device == CPU:
            if self.work.compute == "fp32":
                return "this CPU has no BF16 products of its own"
            return (
                "this CPU has BF16 products of its own, 2.0 to 2.7 times as fast as FP32 at 135M parameters"
            )
        if self.work.compute == "fp32":
            return "asked for; bf16 is what the device's matrix units are for"
        why = "primary weights stay in high precision, so lower ones raise throughput and save no memory; "
        if name not in FP8_DEVICES:
            return f"{why}{name} has no FP8"
        if self.shape.parameters < LARGE_MODEL:
            others = "FP8, MXFP8 and NVFP4" if name in BLOCK_SCALED_DEVICES else "FP8"
            why += f"below {limit} the gains of {others} are modest and alike: if any, start with FP8"
        else:
            why += f"from {limit} FP8 is the balance"
            if name in BLOCK_SCALED_DEVICES:
                why += ", MXFP8 where accuracy matters, NVFP4 only with a validated recipe"
        return f"{why}; compare loss curves before production, so a plan does not switch it on"

    def _state(self) -> str:
        layout = self.layout
        variants = "; ".join(
            f"{state}: {human_bytes(size * self.shape.parameters / layout.shard / layout.tensor / layout.pipeline)}"
            for state, size in (("fp32", 16), ("bf16", 8))
        )
        return (
            f"weights, gradients and moments a device, {variants}; bf16 is what was published and loses updates "
            "that are small against the weight"
        )

    def _kernels(self) -> str:
        if self.machine.device == CPU:
            return "Liger's kernels need a GPU"
        variants = "; ".join(
            f"{name}: {self._figures(self.layout, replace(self.work, kernels=name))}" for name in KERNELS
        )
        return f"fused norms, rotation, SwiGLU and loss keep less and move less; {variants}"
