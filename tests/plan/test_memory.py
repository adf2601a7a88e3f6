from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anadil.core.errors import RecipeError
from anadil.core.format import GIB
from anadil.estimate import activations
from anadil.estimate.fit import FITS, OUTSIDE_BYTES, PROCESS_BYTES, TIGHT, fit_verdict, limit_bytes, reserved
from anadil.estimate.instances import CPU, Machine, machine
from anadil.estimate.layout import Layout, Recompute, Work, hardest, layout_of, possible_layout, work_of
from anadil.estimate.memory import peak_memory
from anadil.recipe.load import load_recipe
from tests.kit.one_text import ONE_TEXT
from tests.kit.plans import EIGHT, ONE

WORK = Work(sequence_length=2_048)
P5 = machine("p5.48xlarge")

layouts = st.builds(
    Layout,
    data=st.sampled_from([8, 16]),
    shard=st.sampled_from([1, 2, 8]),
    tensor=st.sampled_from([1, 2, 8]),
    context=st.sampled_from([1, 2]),
    pipeline=st.sampled_from([1, 2, 4]),
    micro_batch_size=st.integers(1, 16),
    micro_batches=st.integers(1, 9),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
works = st.builds(
    Work,
    sequence_length=st.sampled_from([512, 2_048]),
    trains=st.sampled_from(["all", "embeddings"]),
    state=st.sampled_from(["fp32", "bf16"]),
    kernels=st.sampled_from(["liger", "torch"]),
    loss=st.sampled_from(["fused", "logits"]),
)
NAME = "azerbaijani-1b"
P4D = machine("p4d.24xlarge")
LAPTOP = replace(P4D, name="local", device=CPU, devices=1)
EMBEDDINGS = "pretrain.phases=[{trains: embeddings, steps: 10, lr: 1.0e-4}]"


@given(layout=layouts, work=works)
def test_parts_add_up_and_none_is_negative(layout: Layout, work: Work) -> None:
    memory = peak_memory(EIGHT, layout, work)

    assert memory.allocated == sum(memory.parts.values())
    assert min(memory.parts.values()) > 0
    assert 0 <= memory.stage < layout.pipeline


@given(layout=layouts, work=works)
def test_one_more_sequence_never_takes_less_memory(layout: Layout, work: Work) -> None:
    more = replace(layout, micro_batch_size=layout.micro_batch_size + 1)

    assert peak_memory(EIGHT, more, work).allocated >= peak_memory(EIGHT, layout, work).allocated


@given(layout=layouts, work=works)
def test_more_shards_never_take_more_memory_of_state(layout: Layout, work: Work) -> None:
    more = replace(layout, shard=layout.data * layout.context)

    few, many = peak_memory(EIGHT, layout, work).parts, peak_memory(EIGHT, more, work).parts

    if peak_memory(EIGHT, layout, work).stage == peak_memory(EIGHT, more, work).stage:
        assert many["weights"] <= few["weights"]
        assert many["optimizer"] <= few["optimizer"]


def test_accumulation_keeps_the_gradients_through_the_loss() -> None:
    """With many tokens a single micro-batch has its worst moment where there are none yet."""
    layout = Layout(micro_batch_size=8)

    once = peak_memory(ONE, layout, WORK)
    summed = peak_memory(ONE, replace(layout, micro_batches=2), WORK)

    assert once.moment == summed.moment == "loss"
    assert "gradients" not in once.parts
    assert summed.parts["gradients"] == 4 * (ONE.parameters - ONE.hidden)


def test_state_of_1b_is_the_published_one() -> None:
    """8 bytes a parameter, on one device and on eight: 9.23 and 1.17 GiB were published."""
    work = replace(WORK, state="bf16")
    gradients = 2 * ONE.parameters

    for shard, gib in ((1, 9.208), (8, 1.151)):
        parts = peak_memory(ONE, Layout(data=shard, shard=shard), work).parts
        state = parts["weights"] + parts["optimizer"] + gradients / shard

        assert state / GIB == pytest.approx(gib, abs=0.001)


def test_a_tied_table_has_three_gradients_at_the_end() -> None:
    layout, work = Layout(recompute="full"), replace(WORK, state="bf16", sequence_length=256)

    tied = peak_memory(ONE, layout, work)
    untied = peak_memory(replace(ONE, tied=False), layout, work)

    layers = ONE.layers * ONE.layer
    assert tied.moment == untied.moment == "end of backward"
    assert tied.parts["gradients"] == 2 * (layers + 3 * ONE.embedding)
    assert untied.parts["gradients"] == 2 * (layers + 2 * ONE.embedding)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_frozen_layers_never_keep_more(recompute: Recompute) -> None:
    layout = Layout(recompute=recompute)
    frozen = replace(WORK, trains="embeddings")

    assert activations.saved_bytes(ONE, frozen, layout) <= activations.saved_bytes(ONE, WORK, layout)
    assert activations.layer_bytes(ONE, frozen, layout) < activations.layer_bytes(ONE, WORK, layout)


def test_layers_that_are_kept_are_all_gathered_and_their_shares_do_not_change() -> None:
    layout = Layout(data=8, shard=8, micro_batch_size=8)
    kept, freed = (
        peak_memory(EIGHT, replace(layout, reshard=reshard), WORK).parts for reshard in (False, True)
    )
    layers = EIGHT.layers * EIGHT.layer

    assert kept["gathered weights"] - freed["gathered weights"] == 2 * layers
    assert kept | {"gathered weights": 0} == freed | {"gathered weights": 0}
    alone = Layout(prefetch=8, reshard=False)
    assert peak_memory(ONE, alone, WORK) == peak_memory(ONE, Layout(), WORK)


def test_only_unsharded_fp32_weights_are_copied_by_autocast() -> None:
    copied = peak_memory(ONE, Layout(micro_batch_size=4), WORK).parts

    assert copied["autocast copies"] == 2 * ONE.layers * ONE.layer_matrices
    for layout, work in (
        (Layout(data=8, shard=8, micro_batch_size=4), WORK),
        (Layout(micro_batch_size=4), replace(WORK, state="bf16")),
        (Layout(micro_batch_size=4), replace(WORK, compute="fp32")),
    ):
        assert "autocast copies" not in peak_memory(ONE, layout, work).parts


def test_a_gpu_needs_what_no_allocator_sees_and_a_sharded_one_a_layer_more() -> None:
    alone = peak_memory(ONE, Layout(), WORK)
    sharded = peak_memory(ONE, Layout(data=8, shard=8), WORK)

    assert reserved(alone, P5) == {"CUDA, NCCL, cuBLAS": OUTSIDE_BYTES}
    assert reserved(sharded, P5) == {"prefetched layer": 2 * ONE.layer, "CUDA, NCCL, cuBLAS": OUTSIDE_BYTES}


def test_a_cpu_holds_the_copy_of_weights_and_moments_that_is_written() -> None:
    memory = peak_memory(ONE, Layout(), WORK)

    copy = memory.parts["weights"] + memory.parts["optimizer"]
    assert copy == pytest.approx(3 * memory.parts["weights"], rel=1e-5)
    assert reserved(memory, replace(P5, device=CPU)) == {
        "copy for checkpoints": copy,
        "Python and libraries": PROCESS_BYTES,
    }


def test_a_step_fits_up_to_the_limit_and_tightly_a_little_above() -> None:
    fits, tight = limit_bytes(P5), limit_bytes(P5, TIGHT)

    assert fits == round(OUTSIDE_BYTES + FITS * (P5.memory_bytes - OUTSIDE_BYTES))
    assert [fit_verdict(each, P5) for each in (fits, fits + 1, tight, tight + 1)] == [
        "fits",
        "tight",
        "tight",
        "no",
    ]


def test_a_device_smaller_than_what_lies_outside_takes_nothing() -> None:
    small = replace(P5, memory_bytes=GIB)

    assert limit_bytes(small) == OUTSIDE_BYTES
    assert fit_verdict(OUTSIDE_BYTES + 1, small) == "no"


def test_auto_is_bf16_with_liger_on_a_gpu_and_fp32_with_torch_on_a_cpu() -> None:
    recipe = load_recipe(NAME)

    assert work_of(recipe, P4D) == Work(
        sequence_length=2_048, trains="all", state="fp32", compute="bf16", kernels="liger", loss="fused"
    )
    assert work_of(recipe, LAPTOP) == Work(sequence_length=2_048, compute="fp32", kernels="torch")
    assert work_of(recipe, replace(LAPTOP, cpu_bf16=True)).compute == "bf16"


@pytest.mark.parametrize("kind", [P4D, LAPTOP], ids=["GPU", "CPU"])
def test_state_in_bf16_computes_in_bf16_everywhere(kind: Machine) -> None:
    recipe = load_recipe(NAME, ["pretrain.state=bf16"])

    assert (work_of(recipe, kind).state, work_of(recipe, kind).compute) == ("bf16", "bf16")


def test_what_the_recipe_says_goes_before_auto() -> None:
    recipe = load_recipe(
        NAME, ["pretrain.precision=fp32", "pretrain.kernels=torch", "pretrain.sequence_length=512"]
    )

    work = work_of(recipe, P4D, "embeddings")

    assert (work.compute, work.kernels, work.sequence_length) == ("fp32", "torch", 512)
    assert work.trains == "embeddings"


def test_a_pipeline_with_fewer_micro_batches_than_stages_is_refused_with_the_remedy() -> None:
    changes = [
        "pretrain.parallelism={pipeline: 4}", "pretrain.batch_size=64", "pretrain.micro_batch_size=14"
    ]  # fmt: skip

    with pytest.raises(
        RecipeError, match=r"14 of the 32 sequences .* make 3 micro-batches, .*lower it to 8, or"
    ):
        layout_of(load_recipe(NAME, changes), P4D, 1)

    recipe = load_recipe(NAME, [*changes, "pretrain.micro_batch_size=8"])
    assert layout_of(recipe, P4D, 1).micro_batches == 4


def test_a_recipe_without_degrees_is_a_copy_on_every_device() -> None:
    recipe = load_recipe(NAME, ["pretrain.parallelism={}", "pretrain.micro_batch_size=14"])

    assert layout_of(recipe, P4D, 2) == Layout(data=16, micro_batch_size=14, micro_batches=1)
    assert layout_of(recipe, LAPTOP, 1) == Layout(micro_batch_size=14, micro_batches=16)


def test_degrees_of_the_recipe_share_the_devices() -> None:
    recipe = load_recipe(
        NAME,
        [
            "pretrain.parallelism={shard: 4, tensor: 2, context: 2, pipeline: 2, prefetch: 3, reshard: false}",
            "pretrain.activation_checkpointing=full",
            "pretrain.micro_batch_size=8",
        ],
    )

    layout = layout_of(recipe, P4D, 2)

    assert layout == Layout(
        data=2, shard=4, tensor=2, context=2, pipeline=2, micro_batch_size=8, micro_batches=14,
        recompute="full", prefetch=3, reshard=False,
    )  # fmt: skip
    assert layout.devices == 16
    assert layout.batch_size == recipe.pretrain.batch_size


def test_a_batch_that_does_not_divide_counts_for_the_slowest_device() -> None:
    recipe = load_recipe(NAME, ["pretrain.batch_size=100", "pretrain.micro_batch_size=4"])

    layout = layout_of(recipe, P4D, 2)

    assert (layout.micro_batch_size, layout.micro_batches) == (4, 2)
    assert layout.batch_size > 100


def test_a_micro_batch_is_never_larger_than_a_devices_part() -> None:
    layout = layout_of(load_recipe(NAME, ["pretrain.micro_batch_size=14"]), P4D, 8)

    assert (layout.data, layout.micro_batch_size, layout.micro_batches) == (64, 4, 1)


def test_degrees_that_do_not_divide_the_devices_name_them_and_the_way_out() -> None:
    recipe = load_recipe(NAME, ["pretrain.parallelism={tensor: 3, pipeline: 2}"])

    with pytest.raises(RecipeError) as refused:
        layout_of(recipe, P4D, 2)

    assert str(refused.value) == (
        "pretrain.parallelism: tensor 3 x context 1 x pipeline 2 do not divide 16 devices "
        "(2 x p4d.24xlarge); choose degrees whose product does, or another cluster.nodes"
    )


@pytest.mark.parametrize(
    ("degrees", "layout", "changed"),
    [
        ("{shard: 16}", Layout(data=16, shard=16, micro_batch_size=14), {}),
        ("{shard: 256}", Layout(data=16, shard=16, micro_batch_size=14), {"shard": 16}),
        (
            "{shard: 256, tensor: 2}",
            Layout(data=8, shard=8, tensor=2, micro_batch_size=14, micro_batches=2),
            {"shard": 8},
        ),
        ("{shard: 16, tensor: 3}", Layout(data=16, shard=16, micro_batch_size=14), {"tensor": 1}),
        (
            "{context: 3, pipeline: 32}",
            Layout(data=16, shard=16, micro_batch_size=14),
            {"context": 1, "pipeline": 1, "shard": 16},
        ),
    ],
)
def test_degrees_that_do_not_divide_have_a_nearest_layout_that_the_same_settings_give(
    degrees: str, layout: Layout, changed: dict[str, int]
) -> None:
    recipe = load_recipe(NAME, [f"pretrain.parallelism={degrees}"])

    found, settings = possible_layout(recipe, P4D, 2)

    assert found == layout
    assert settings == {f"pretrain.parallelism.{name}": degree for name, degree in changed.items()}
    overrides = [f"{key}={value}" for key, value in settings.items()]
    assert layout_of(load_recipe(NAME, [f"pretrain.parallelism={degrees}", *overrides]), P4D, 2) == layout


def test_the_hardest_phase_trains_everything_where_one_does() -> None:
    assert hardest(load_recipe(NAME)) == "all"
    assert hardest(load_recipe(NAME, [ONE_TEXT, EMBEDDINGS])) == "embeddings"
