from dataclasses import replace

import pytest

from anadil.core.errors import RecipeError
from anadil.plan.instances import CPU, Machine, machine
from anadil.plan.layout import Layout, Work, hardest, layout_of, possible_layout, work_of
from anadil.recipe.load import load_recipe
from tests.kit.one_text import ONE_TEXT

NAME = "azerbaijani-1b"
P4D = machine("p4d.24xlarge")
LAPTOP = replace(P4D, name="local", device=CPU, devices=1)
EMBEDDINGS = "pretrain.phases=[{trains: embeddings, steps: 10, lr: 1.0e-4}]"


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


def test_a_shard_that_does_not_divide_its_group_names_the_group() -> None:
    recipe = load_recipe(NAME, ["pretrain.parallelism={shard: 16, tensor: 4}"])

    with pytest.raises(RecipeError) as refused:
        layout_of(recipe, P4D, 2)

    assert str(refused.value) == (
        "pretrain.parallelism.shard: 16 does not divide the 4 devices that hold the same layers "
        "(2 x p4d.24xlarge); choose a divisor"
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
