from dataclasses import replace

import pytest

from anadil.core.errors import RecipeError
from anadil.plan.instances import Machine, machine
from anadil.plan.layout import Layout, Recompute, Work
from anadil.plan.model_shape import Shape
from anadil.plan.speed import CPU_CHUNK_BYTES, CPU_CHUNK_TOKENS, speed
from tests.kit.plans import EIGHT, ONE, SEVENTY

P4D = machine("p4d.24xlarge")
P5 = machine("p5.48xlarge")
LAPTOP = replace(
    P5, name="local", device="CPU", devices=1, flops_bf16=80e9, hbm=10e9, nvlink=10e9, network=0.0
)
WORK = Work(sequence_length=2_048, state="bf16")
LONG = Work(sequence_length=8_192)
LONG_TORCH = replace(LONG, kernels="torch", loss="logits")
FSDP8 = Layout(data=8, shard=8, micro_batch_size=14)
TORCH = replace(WORK, kernels="torch", loss="logits")
FSDP16 = Layout(data=16, shard=16, micro_batch_size=14)


def tokens(shape: Shape, layout: Layout, work: Work, where: Machine = P5, nodes: int = 1) -> float:
    return speed(shape, layout, work, where, nodes).tokens_per_s_per_device


@pytest.mark.parametrize(
    ("published", "shape", "layout", "work", "where", "nodes"),
    [
        # Azercell and AWS, Llama 3.2 1B: FSDP on p5, then FSDP with Liger.
        (63_771, ONE, replace(FSDP8, micro_batch_size=10), TORCH, P5, 1),
        (78_319, ONE, FSDP8, WORK, P5, 1),
        # The same on two p4d, by the hour; why it is slow was not published.
        (10_002, ONE, FSDP16, WORK, P4D, 2),
        (12_575, ONE, FSDP16, replace(WORK, trains="embeddings"), P4D, 2),
        # Llama 3.3 Swallow 70B by its days, layout as in Megatron-LM; the sequence length is a guess.
        (874, SEVENTY, Layout(data=4, tensor=8, pipeline=8, micro_batches=128), LONG, P5, 32),
        # torchtitan, docs/performance.md, 64 A100 80 GB.
        (331, SEVENTY, Layout(data=64, shard=64, recompute="full"), LONG_TORCH, machine("p4de.24xlarge"), 8),
    ],
)
def test_published_runs_are_predicted_within_a_factor_of_three(
    published: float, shape: Shape, layout: Layout, work: Work, where: Machine, nodes: int
) -> None:
    predicted = tokens(shape, layout, work, where, nodes)

    assert 1 / 3 < published / predicted < 1.3


def test_liger_is_faster_than_torch_by_about_what_was_published() -> None:
    torch = tokens(ONE, replace(FSDP8, micro_batch_size=10), TORCH)

    liger = tokens(ONE, FSDP8, WORK)

    assert liger / torch == pytest.approx(78_319 / 63_771, rel=0.15)


def test_a_frozen_backbone_is_faster_by_about_what_was_published() -> None:
    everything = tokens(ONE, FSDP16, WORK, P4D, 2)

    embeddings = tokens(ONE, FSDP16, replace(WORK, trains="embeddings"), P4D, 2)

    assert embeddings / everything == pytest.approx(12_575 / 10_002, rel=0.1)


def test_parts_add_up_to_the_step_and_rates_follow_from_it() -> None:
    layout = Layout(data=2, shard=2, tensor=4, context=2, pipeline=2, micro_batches=8, recompute="full")

    found = speed(EIGHT, layout, LONG, P5, 4)

    assert sum(found.parts_s.values()) == pytest.approx(found.step_s)
    assert min(found.parts_s.values()) > 0
    assert found.tokens_per_s == pytest.approx(layout.batch_size * 8_192 / found.step_s)
    assert found.tokens_per_s == pytest.approx(found.tokens_per_s_per_device * 32)
    assert found.without_overlap_s > found.step_s


def test_recomputation_costs_a_third_of_the_layers_at_most() -> None:
    levels: list[Recompute] = ["none", "selective", "full"]
    seconds = [speed(EIGHT, Layout(data=8, shard=8, recompute=each), LONG, P5, 1).step_s for each in levels]

    assert seconds == sorted(seconds)
    assert 1.2 < seconds[2] / seconds[0] < 1.4


def test_a_pipeline_has_the_bubble_of_its_stages() -> None:
    layout = Layout(data=1, shard=1, tensor=8, pipeline=4, micro_batches=12)

    found = speed(SEVENTY, layout, LONG, P5, 4)

    rest = found.step_s - found.parts_s["optimizer"] - found.parts_s["pipeline bubble"]
    assert found.parts_s["pipeline bubble"] / (found.parts_s["pipeline bubble"] + rest) == pytest.approx(
        3 / (12 + 3)
    )


def test_tensor_parallelism_across_machines_is_slower_than_within_one() -> None:
    within = tokens(SEVENTY, Layout(tensor=8), LONG, P4D, 1)

    across = tokens(SEVENTY, Layout(tensor=16), LONG, P4D, 2)

    assert across < 0.6 * within


def test_layers_that_are_kept_spare_one_of_two_gathers() -> None:
    slow = replace(P5, network=1.25e9)
    layout = replace(FSDP16, micro_batch_size=1)

    freed, kept = (
        speed(EIGHT, replace(layout, reshard=reshard), WORK, slow, 2).parts_s["exposed communication"]
        for reshard in (True, False)
    )

    # Gathers and sums are all in BF16 here, so of three two are left.
    assert kept / freed == pytest.approx(2 / 3, abs=0.05)


def test_an_unknown_network_is_taken_as_ethernet() -> None:
    unknown = replace(P5, network=0.0)

    assert tokens(ONE, FSDP16, WORK, unknown, 2) == tokens(ONE, FSDP16, WORK, replace(P5, network=1.25e9), 2)


def test_fp32_on_a_gpu_is_far_slower_but_on_a_cpu_is_what_its_peak_says() -> None:
    exact = replace(WORK, state="fp32", compute="fp32")

    assert tokens(ONE, FSDP8, exact) < tokens(ONE, FSDP8, WORK) / 5
    assert tokens(ONE, Layout(), exact, LAPTOP) > tokens(ONE, Layout(), WORK, LAPTOP) / 3


def test_a_cpu_with_bf16_products_is_faster_in_bf16() -> None:
    with_products = replace(LAPTOP, cpu_bf16=True)

    gain = tokens(ONE, Layout(), WORK, with_products) / tokens(ONE, Layout(), WORK, LAPTOP)

    assert 1.3 < gain <= 2


def test_a_cpu_gets_a_sane_speed_without_communication() -> None:
    tiny = Shape(
        name="tiny", hidden=64, intermediate=256, layers=2, heads=4, kv_heads=2, head_dim=16,
        vocabulary=2_000, tied=True,
    )  # fmt: skip
    work = Work(sequence_length=128, compute="fp32", kernels="torch")

    found = speed(tiny, Layout(micro_batch_size=8), work, LAPTOP, 1)

    assert found.parts_s["exposed communication"] == 0
    assert 1_000 < found.tokens_per_s < 1_000_000
    assert 0 < found.mfu < 1


def test_chunks_of_the_loss_on_a_cpu_are_those_of_the_model() -> None:
    from anadil.model.loss import CHUNK_TOKENS, CPU_LOGITS_BYTES

    assert (CPU_CHUNK_TOKENS, CPU_CHUNK_BYTES) == (CHUNK_TOKENS, CPU_LOGITS_BYTES)


def test_a_layout_of_other_devices_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"FSDP 8 takes 8 devices, but 2 x p5.48xlarge have 16; change the"):
        speed(ONE, FSDP8, WORK, P5, 2)


def test_a_device_whose_speed_is_not_known_is_refused() -> None:
    unknown = replace(P5, name="local", device="RTX 6000", flops_bf16=0.0)

    with pytest.raises(RecipeError, match=r"local: the peak and memory bandwidth of RTX 6000 are not known"):
        speed(ONE, FSDP8, WORK, unknown, 1)
