from dataclasses import replace

import pytest

from anadil.core.format import human_bytes
from anadil.estimate.fit import layout_fit
from anadil.estimate.instances import machine, this_machine
from anadil.estimate.layout import Layout, Work
from anadil.estimate.search import LayoutRationale, Rationale
from anadil.estimate.speed import speed
from tests.kit.plans import ONE, SEVENTY

P4D = machine("p4d.24xlarge")
P5 = machine("p5.48xlarge")
B200 = machine("p6-b200.48xlarge")
SMALL = LayoutRationale(
    shape=ONE,
    layout=Layout(data=16, shard=8, micro_batch_size=7, micro_batches=2, recompute="selective"),
    work=Work(sequence_length=2_048),
    machine=P4D,
    nodes=2,
)
LARGE = LayoutRationale(
    shape=SEVENTY,
    layout=Layout(data=64, shard=64, tensor=4, micro_batch_size=1, micro_batches=8, recompute="full"),
    work=Work(sequence_length=8_192),
    machine=P5,
    nodes=32,
)
PLAIN = replace(SMALL, layout=Layout(data=8, micro_batch_size=14), machine=P5, nodes=1)


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> LayoutRationale:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    work = Work(sequence_length=128, compute="fp32", kernels="torch")
    return LayoutRationale(shape=ONE, layout=Layout(), work=work, machine=this_machine(), nodes=1)


def of(chosen: LayoutRationale, setting: str) -> Rationale:
    return next(choice for choice in chosen.settings() if choice.setting == setting)


def told(chosen: LayoutRationale, layout: Layout) -> str:
    total, _ = layout_fit(chosen.shape, layout, chosen.work, chosen.machine)
    rate = speed(chosen.shape, layout, chosen.work, chosen.machine, chosen.nodes)
    return f"{human_bytes(total)}, {rate.tokens_per_s_per_device:,.0f} tokens/s"


@pytest.mark.parametrize("chosen", [SMALL, LARGE, PLAIN], ids=["1B", "70B", "DDP"])
def test_every_setting_has_its_reason_in_the_order_in_which_one_decides(chosen: LayoutRationale) -> None:
    choices = chosen.settings()

    assert [choice.setting for choice in choices] == [
        "parallelism",
        "micro-batch",
        "activation checkpointing",
        "precision",
        "state",
        "kernels",
    ]
    assert all(choice.value and choice.why for choice in choices)


def test_a_copy_on_each_device_is_compared_with_sharing_it() -> None:
    found = of(PLAIN, "parallelism")

    assert found.value == "DDP 8"
    assert f"a copy on each device: {told(PLAIN, PLAIN.layout)}" in found.why
    assert f"(FSDP): {told(PLAIN, replace(PLAIN.layout, shard=8))}" in found.why


def test_a_shared_model_is_compared_with_a_copy_that_does_not_fit() -> None:
    found = of(LARGE, "parallelism")

    assert found.value == "FSDP 64 x TP 4"
    assert found.why.startswith(told(LARGE, LARGE.layout))
    copy, _ = layout_fit(SEVENTY, replace(LARGE.layout, shard=1), LARGE.work, P5)
    assert f"data-parallel device {human_bytes(copy)}, does not fit; tensor" in found.why
    assert found.why.endswith("tensor parallel stays within a machine's 8 devices")


def test_one_device_has_nothing_to_share() -> None:
    one = replace(PLAIN, layout=Layout(micro_batch_size=2), machine=replace(P5, devices=1))

    found = of(one, "parallelism")

    assert (found.value, found.why) == ("one device", "there is one device")


def test_the_batch_is_compared_with_its_neighbours_among_the_divisors() -> None:
    found = of(SMALL, "micro-batch")

    assert found.value == "7 x 2"
    assert found.why.startswith("batch first: ")
    assert "of the divisors of 14, 7: " in found.why
    assert f"; 2: {told(SMALL, replace(SMALL.layout, micro_batch_size=2, micro_batches=7))}" in found.why
    assert f"; 14: {told(SMALL, replace(SMALL.layout, micro_batch_size=14, micro_batches=1))}" in found.why


@pytest.mark.parametrize(
    ("chosen", "rule"),
    [
        (SMALL, "below about 14B it is generally not needed (1.24B here)"),
        (LARGE, "from about 14B it is a prerequisite (70.6B here)"),
    ],
    ids=["1B", "70B"],
)
def test_checkpointing_names_the_rule_and_the_price_of_each_kind(chosen: LayoutRationale, rule: str) -> None:
    found = of(chosen, "activation checkpointing")

    assert found.value == chosen.layout.recompute
    assert rule in found.why
    assert "10-30 % more compute" in found.why
    assert found.why.endswith(f"full: {told(chosen, replace(chosen.layout, recompute='full'))}")


@pytest.mark.parametrize(
    ("chosen", "words", "absent"),
    [
        (SMALL, "A100 has no FP8", "NVFP4"),
        (PLAIN, "below 14B the gains of FP8 are modest and alike: if any, start with FP8", "NVFP4"),
        (LARGE, "from 14B FP8 is the balance;", "NVFP4"),
        (replace(LARGE, machine=B200), "MXFP8 where accuracy matters, NVFP4 only with a validated", "modest"),
    ],
    ids=["1B on A100", "1B on H100", "70B on H100", "70B on B200"],
)
def test_low_precision_is_told_by_device_and_size(chosen: LayoutRationale, words: str, absent: str) -> None:
    found = of(chosen, "precision")

    assert found.value == "bf16"
    assert found.why.startswith("primary weights stay in high precision")
    assert "save no memory" in found.why
    assert words in found.why
    assert absent not in found.why
    assert ("compare loss curves before production" in found.why) == (chosen.machine is not P4D)


def test_fp32_has_one_reason_on_a_cpu_and_another_on_a_gpu(cpu: LayoutRationale) -> None:
    on_cpu, on_gpu = of(cpu, "precision"), of(replace(cpu, machine=replace(P5, devices=1)), "precision")

    assert (on_cpu.value, on_gpu.value) == ("fp32", "fp32")
    assert "no BF16 products" in on_cpu.why
    assert on_gpu.why.startswith("asked for")


def test_the_state_is_counted_for_one_device() -> None:
    found = of(SMALL, "state")

    assert found.value == "fp32"
    assert f"fp32: {human_bytes(16 * ONE.parameters / 8)}; bf16: {human_bytes(ONE.parameters)};" in found.why


def test_kernels_are_compared_on_a_gpu_and_need_none_on_a_cpu(cpu: LayoutRationale) -> None:
    assert of(SMALL, "kernels").value == "liger"
    assert f"liger: {told(SMALL, SMALL.layout)}; torch: " in of(SMALL, "kernels").why
    assert of(cpu, "kernels") == Rationale(setting="kernels", value="torch", why="Liger's kernels need a GPU")
