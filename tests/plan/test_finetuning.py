"""What finetune and evaluate need is counted, and refused before pre-training where it does not fit."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from anadil.cli import main
from anadil.core.errors import PreflightError
from anadil.core.format import GIB, MIB
from anadil.core.stages import STAGES
from anadil.estimate.instances import CPU, Machine, machine, this_machine
from anadil.estimate.model_shape import shape_from, trained_shape
from anadil.estimate.stage_memory import NeedRequest, StageMemory, scoring_plan
from anadil.finetune.need import finetune_memory, finetune_plan, recomputes
from anadil.merge import need as merge_need
from anadil.plan.needs import checked_memory, stage_devices
from anadil.plan.plan import build_plan, choose_layout, request_for
from anadil.plan.view import plan_lines
from anadil.preflight.checks import CHECKS, report
from anadil.preflight.memory import check_finetune, check_fits
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.check import DOCTOR, LAUNCH, PlannedRun
from tests.kit import plans
from tests.kit.jobs import job

SEVENTY = load_recipe("japanese-70b")
ALL = "finetune.trains=all"
REFUSAL = r"finetune does not fit: all weights of meta-llama/Llama-3\.3-70B"
P5 = machine("p5.48xlarge")
PAIRS = "finetune.preference.inputs=[pairs.jsonl]"
VECTOR = "{model: meta-llama/Llama-3.2-1B-Instruct, minus: meta-llama/Llama-3.2-1B, weight: %s}"


@pytest.mark.parametrize(
    ("stage", "overrides", "expected"),
    [
        ("clean", [], (1, 0)),
        ("pretrain", [], (4, 8)),
        ("finetune", [], (1, 4)),
        ("finetune", ["finetune.quantization=4bit"], (1, 1)),
        ("finetune", ["finetune.trains=all", "finetune.batch_size=32"], (3, 8)),
        ("evaluate", [], (1, 4)),
        ("evaluate", ["cluster.resources.evaluate.gpus=8"], (1, 8)),
    ],
)
def test_each_takes_the_fewest_that_hold_what_it_loads(
    stage: str, overrides: list[str], expected: tuple[int, int]
) -> None:
    assert stage_devices(stage, load_recipe("japanese-70b", overrides), P5, 4) == expected


def test_a_machine_without_gpus_gives_none() -> None:
    assert stage_devices("finetune", SEVENTY, replace(P5, device=CPU), 4) == (1, 0)


def test_a_model_that_is_not_here_asks_for_one_gpu_and_says_how_to_ask_for_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recipe = load_recipe("japanese-70b", ["base.model=/not/here"])

    with caplog.at_level(logging.WARNING):
        assert stage_devices("finetune", recipe, P5, 1) == (1, 1)

    assert "cluster.resources.finetune.gpus=N asks for more" in caplog.text


def test_a_job_of_finetune_has_a_process_for_each_of_its_gpus() -> None:
    whole = job("japanese-70b", "finetune.trains=all", "finetune.batch_size=32", stage="finetune")

    assert (job("japanese-70b", stage="finetune").nodes, job("japanese-70b", stage="finetune").processes) == (
        1,
        4,
    )
    assert (whole.nodes, whole.devices, whole.processes) == (3, 8, 8)
    assert job("japanese-70b", "cluster.instance=null", stage="finetune").processes == 1


def finetune_of(name: str, *overrides: str, kind: Machine = P5, nodes: int = 1) -> StageMemory:
    recipe = load_recipe(name, overrides)
    return finetune_plan(trained_shape(recipe), recipe, kind, nodes)


def test_the_70b_recipe_names_chats_and_four_gpus_hold_its_finetune_and_evaluate() -> None:
    recipe = load_recipe("japanese-70b")
    line = check_fits(recipe, here=False)

    assert recipe.finetune.inputs
    assert "; finetune needs 4" in line
    assert line.count("GiB of 79.1 GiB on each of 4 devices (fits)") == 2


def test_all_weights_of_70b_are_refused_with_the_need_and_remedies_that_fit() -> None:
    with pytest.raises(PreflightError, match=REFUSAL) as error:
        check_fits(load_recipe("japanese-70b", [ALL]), here=False)

    said = str(error.value)
    assert re.search(
        r"on 8 devices needs 14\d\.\d GiB of a device that has 79\.1 GiB \(p5\.48xlarge, H100\)", said
    )
    assert "--set 'finetune.inputs=[]'" in said
    assert "finetune.trains=adapter" in said
    remedies = [part.split()[0].rstrip(",") for part in said.split("--set ")[1:] if not part.startswith("'")]
    batch = next(each for each in remedies if each.startswith("finetune.batch_size"))
    assert "fits" in check_finetune(load_recipe("japanese-70b", [ALL, batch]), here=False)
    assert "fits" in check_finetune(load_recipe("japanese-70b", ["finetune.trains=adapter"]), here=False)


@pytest.mark.parametrize(
    "command", [["plan"], ["submit", "--namespace", "x", "--host", "http://127.0.0.1:9"]]
)
def test_plan_and_submit_refuse_it(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*command, "japanese-70b", "--set", ALL]) == 4
    assert "finetune does not fit" in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
def test_a_launch_of_either_stage_is_checked(stage: str) -> None:
    recipe = load_recipe("japanese-70b", [ALL])
    [check] = [each for each in CHECKS if each.name == "memory" and LAUNCH in each.by]

    with pytest.raises(PreflightError, match=REFUSAL):
        list(check.function(PlannedRun(by=LAUNCH, recipe=recipe, stages=(STAGES[stage],), here=False)))


def test_doctor_shows_what_both_need_here(tmp_path: Path) -> None:
    checks = {
        check.name: check
        for check in report(PlannedRun(by=DOCTOR, recipe=load_recipe("smoke"), work=tmp_path))
    }

    assert "finetune needs" in checks["memory"].detail
    assert "evaluate needs" in checks["memory"].detail


def test_a_plan_has_a_row_for_each_stage_that_loads_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "japanese-70b"]) == 0

    shown = capsys.readouterr().out.splitlines()
    start = shown.index("Memory after pre-training")
    assert [line.split()[0] for line in shown[start + 1 : start + 4]] == ["stage", "finetune", "evaluate"]
    assert [stage["stage"] for stage in plans.plan().as_json()["after"]] == ["finetune", "evaluate"]


def test_a_stage_that_the_run_does_not_reach_is_not_refused() -> None:
    whole = load_recipe("japanese-70b", [ALL])

    assert "finetune" not in check_fits(load_recipe("japanese-70b", ["finetune.inputs=[]", ALL]), here=False)
    assert "finetune" not in check_fits(whole, here=False, then=("evaluate",))
    assert "evaluate" not in check_fits(whole, here=False, then=())


@pytest.mark.parametrize(("device", "size", "more"), [("H100", 2, 12), (CPU, 4, 200)])
def test_one_device_holds_the_weights_in_the_precision_that_finetune_loads(
    device: str, size: int, more: int
) -> None:
    recipe = load_recipe("azerbaijani-8b")
    kind = replace(P5, device=device, memory_bytes=1_000 * GIB)
    shape = trained_shape(recipe)

    need = finetune_memory(shape, recipe, kind, nodes=1, devices=1).total_bytes

    assert shape.parameters * size < need < shape.parameters * size + more * GIB
    assert "(fits)" in next(checked_memory(NeedRequest(recipe=recipe, machine=kind), ("finetune",)))


def test_what_learns_takes_sixteen_bytes_and_four_bits_take_half_a_byte() -> None:
    shape = trained_shape(load_recipe("azerbaijani-8b"))
    adapter, whole, quantized = (
        finetune_of("azerbaijani-8b", each) for each in ("seed=0", ALL, "finetune.quantization=4bit")
    )

    assert whole.devices == 2
    state = whole.parts["weights"] + whole.parts["optimizer"]
    assert state == pytest.approx(12 * shape.parameters / whole.devices)
    frozen, nf4 = adapter.parts["weights"], quantized.parts["weights"]
    matrices = shape.layers * shape.layer_matrices
    assert frozen - nf4 == pytest.approx((2 - 0.516) * matrices, rel=1e-3)
    rows = finetune_of("azerbaijani-8b", "finetune.trains_embeddings=all").parts["adapter"]
    more = rows - finetune_of("azerbaijani-8b", "finetune.trains_embeddings=none").parts["adapter"]
    assert more == pytest.approx(16 * shape.embeddings)


def test_more_devices_share_weights_and_chats_but_never_more_than_there_are_chats() -> None:
    four = finetune_of("japanese-70b")
    one = finetune_of("japanese-70b", "finetune.batch_size=1", "finetune.quantization=4bit")

    assert (four.nodes, four.devices) == (1, 4)
    assert (one.nodes, one.devices) == (1, 1)  # four bits lie on one GPU
    nodes = finetune_of("japanese-70b", ALL, "finetune.batch_size=24", nodes=4)
    assert (nodes.nodes, nodes.devices) == (3, 8)
    assert finetune_of("japanese-70b", ALL, "finetune.batch_size=8", nodes=4).verdict == "no"


def test_gpus_that_the_recipe_asks_for_are_those_that_are_counted() -> None:
    asked = finetune_of("japanese-70b", "cluster.resources.finetune.gpus=8")

    assert asked.devices == 8
    assert finetune_of("japanese-70b", "cluster.resources.finetune.gpus=2").verdict == "no"


def test_a_node_without_the_main_memory_to_load_the_model_is_refused() -> None:
    recipe = load_recipe("japanese-70b")
    small = replace(P5, ram_bytes=100 * GIB)

    with pytest.raises(PreflightError, match=r"131\.4 GiB of main memory of 100\.0 GiB"):
        [*checked_memory(NeedRequest(recipe=recipe, machine=small), ("finetune",))]


def test_evaluate_takes_the_fewest_gpus_and_is_refused_where_one_machine_is_too_small() -> None:
    recipe = load_recipe("japanese-70b")
    small = machine("g5.48xlarge")
    smaller = NeedRequest(recipe=recipe, machine=replace(small, memory_bytes=15 * GIB))

    assert scoring_plan(trained_shape(recipe), recipe, P5, "evaluate").devices == 4
    assert scoring_plan(plans.ONE, recipe, small, "evaluate").devices == 1
    with pytest.raises(PreflightError, match=r"evaluate does not fit: .* on 8 devices of one machine needs"):
        [*checked_memory(smaller, ("evaluate",))]


def test_a_cpu_needs_what_was_measured_on_one() -> None:
    sizes = {
        "vocab_size": 32_000, "hidden_size": 512, "intermediate_size": 1_536, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": True,
    }  # fmt: skip
    cpu = replace(this_machine(), device=CPU, memory_bytes=64 * GIB, ram_bytes=64 * GIB)
    # MiB at the peak of two steps (anonymous memory less that before the model), torch 2.13, trl 1.16.
    measured = {("adapter", 256, 8, 0.05): 3_964, ("adapter", 64, 4, 0.0): 654, ("all", 256, 8, 0.0): 3_518}
    for (trains, length, batch, dropout), seen in measured.items():
        rows = "none" if trains == "adapter" else "all"
        keys = [f"trains={trains}", f"trains_embeddings={rows}", f"max_length={length}", "rank=64"]
        keys += [f"batch_size={batch}", f"dropout={dropout}"]
        recipe = load_recipe("smoke", [f"finetune.{key}" for key in keys])

        need = finetune_memory(shape_from(sizes, "small"), recipe, cpu, nodes=1, devices=1)

        counted = (need.total_bytes - need.parts["Python and libraries"]) / MIB
        assert 0.97 < counted / seen < 1.15


def test_layers_of_several_sizes_need_what_the_widest_takes() -> None:
    sizes = {
        "model_type": "gemma4_text", "vocab_size": 1_024, "vocab_size_per_layer_input": 1_024, "hidden_size": 512,
        "intermediate_size": 1_536, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 64, "global_head_dim": 256, "layer_types": ["sliding_attention", "full_attention"] * 4,
        "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 64,
    }  # fmt: skip
    cpu = replace(this_machine(), device=CPU, memory_bytes=64 * GIB, ram_bytes=64 * GIB)
    keys = (
        "trains=adapter",
        "trains_embeddings=none",
        "max_length=512",
        "rank=64",
        "batch_size=16",
        "dropout=0.05",
    )
    recipe = load_recipe("smoke", [f"finetune.{key}" for key in keys])

    need = finetune_memory(shape_from(sizes, "small"), recipe, cpu, nodes=1, devices=1, recompute=True)

    # MiB as above, with an allocator that gives freed memory back (MALLOC_MMAP_THRESHOLD_=65536).
    counted = (need.total_bytes - need.parts["Python and libraries"]) / MIB
    assert 1 < counted / 1_527 < 1.3


@pytest.mark.parametrize(
    ("sizes", "again", "kept"),
    [
        ({"model_type": "lfm2", "block_auto_adjust_ff_dim": False, "full_attn_idxs": [3, 7]}, 362, 1_203),
        (
            {
                "model_type": "granitemoehybrid", "num_local_experts": 0, "shared_intermediate_size": 1_536,
                "mamba_n_heads": 16, "mamba_d_state": 64, "layer_types": (["mamba"] * 3 + ["attention"]) * 2,
            },
            571,
            2_389,
        ),
    ],
    ids=["lfm2", "granitemoehybrid"],
)  # fmt: skip
def test_layers_of_several_kinds_need_what_was_measured(
    sizes: dict[str, object], again: int, kept: int
) -> None:
    sizes = {
        "vocab_size": 1_024, "hidden_size": 512, "intermediate_size": 1_536, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": False, **sizes,
    }  # fmt: skip
    cpu = replace(this_machine(), device=CPU, memory_bytes=64 * GIB, ram_bytes=64 * GIB)
    keys = (
        "trains=adapter",
        "trains_embeddings=none",
        "max_length=256",
        "rank=64",
        "batch_size=8",
        "dropout=0.05",
    )
    recipe = load_recipe("smoke", [f"finetune.{key}" for key in keys])

    for recompute, seen in ((True, again), (False, kept)):  # MiB as above, also of freed memory
        need = finetune_memory(shape_from(sizes, "x"), recipe, cpu, nodes=1, devices=1, recompute=recompute)

        counted = (need.total_bytes - need.parts["Python and libraries"]) / MIB
        assert 1 < counted / seen < 1.3


def test_a_cpu_makes_activations_again_where_it_cannot_keep_them() -> None:
    recipe = load_recipe("own", ["finetune.inputs=[chats.jsonl]", "base.model=meta-llama/Llama-3.2-1B"])
    cpu = replace(this_machine(), device=CPU, memory_bytes=64 * GIB, ram_bytes=64 * GIB)
    kept = finetune_memory(plans.ONE, recipe, cpu, nodes=1, devices=1)
    # Kept activations would fill it to the last few percent, of which other programs need some.
    smaller = replace(cpu, memory_bytes=round(1.03 * kept.total_bytes))

    again = finetune_memory(plans.ONE, recipe, smaller, nodes=1, devices=1)

    assert [recomputes(plans.ONE, recipe, each, nodes=1, devices=1) for each in (cpu, smaller)] == [
        False,
        True,
    ]
    assert again.verdict == "fits"
    assert again.parts["activations"] + again.parts["recomputation"] < kept.parts["activations"] / 5


def test_pairs_take_twice_their_number_of_chats_and_no_second_model() -> None:
    plain = finetune_of("azerbaijani-1b", "finetune.dropout=0", "finetune.batch_size=16")
    same = finetune_of("azerbaijani-1b", "finetune.dropout=0", PAIRS, "finetune.preference.batch_size=8")
    small = finetune_of("azerbaijani-1b", PAIRS, "finetune.preference.batch_size=1")

    assert same.parts == plain.parts
    assert small.parts == finetune_of("azerbaijani-1b").parts


def test_pairs_that_do_not_fit_are_refused_with_a_batch_that_does() -> None:
    words = (
        "finetune.trains=adapter",
        PAIRS,
        "finetune.preference.max_length=30000",
        "finetune.preference.batch_size=64",
    )

    with pytest.raises(PreflightError) as error:
        check_finetune(load_recipe("azerbaijani-8b", words), here=False)

    said = str(error.value)
    assert said.startswith("finetune.preference does not fit: finetune.preference.batch_size 64 pairs")
    assert said.endswith("leave it out: --set finetune.preference=null")
    size = said.split("--set finetune.preference.batch_size=")[1].split(",", maxsplit=1)[0]
    assert "fits" in check_finetune(
        load_recipe("azerbaijani-8b", [*words, f"finetune.preference.batch_size={size}"]), here=False
    )


def recipe_of(merge: str) -> Recipe:
    return load_recipe("azerbaijani-1b", [f"merge={merge}"])


@pytest.mark.parametrize(
    ("merge", "points", "devices"),
    [
        ("{base_share: 0.25}", 0, (1, 0)),
        ("{base_share: auto}", 7, (1, 1)),
        (f"{{add: [{VECTOR % 'auto'}]}}", 5, (1, 1)),
        (f"{{base_share: auto, add: [{VECTOR % 'auto'}]}}", 11, (1, 1)),
    ],
)
def test_a_merge_takes_a_gpu_only_to_score_what_it_chooses_from(
    merge: str, points: int, devices: tuple[int, int]
) -> None:
    recipe = recipe_of(merge)

    need = merge_need.need(NeedRequest(recipe=recipe, machine=P5))

    assert need
    assert (need.points, need.memory is not None) == (points, points > 0)
    assert stage_devices("merge", recipe, P5, 1) == devices


def test_each_model_is_read_once() -> None:
    plain = recipe_of("{base_share: 0.25}")
    added = recipe_of(f"{{add: [{VECTOR % 1.0}]}}")

    needs = [merge_need.need(NeedRequest(recipe=each, machine=P5)) for each in (plain, added)]

    one, two = (need for need in needs if need)
    # The base is what is subtracted, and is read once.
    assert two.read_bytes - one.read_bytes == one.read_bytes - one.disk_bytes


def test_a_plan_without_a_merge_says_nothing_of_it() -> None:
    plans = []
    for settings in ([], ["merge={base_share: 0.25}"]):
        request = request_for("r", load_recipe("azerbaijani-1b", settings), P5, 1, None)
        plans.append(build_plan(request, choose_layout(request)))

    shown = ["\n".join(plan_lines(plan)) for plan in plans]
    assert ["weights to read" in each for each in shown] == [False, True]
    assert "merges to score" not in shown[1]


def test_the_plan_counts_the_blocks_and_points_that_the_stage_has() -> None:
    from anadil.merge import auto, weights

    assert merge_need.BLOCK_BYTES == weights.BLOCK_BYTES
    assert len(auto.STEPS) + auto.MORE_SHARES == merge_need.SHARES
    # A weight of 0 is the point without the difference, which is measured already.
    assert len(auto.STEPS) - 1 == merge_need.WEIGHTS
