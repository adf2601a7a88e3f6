from dataclasses import replace

import pytest
from benchmarks.plan.published import FSDP8, LIGER, TORCH, Row, largest_batch, rows

from anadil.plan.instances import machine
from anadil.plan.layout import Layout, Work
from anadil.plan.memory import layout_fit
from tests.kit.plans import ONE, SEVENTY

NOT_EXPLAINED = {
    "1B largest batch on p4d, DDP",
    "1B largest batch on p5, DDP",
    "1B largest batch on p5, FSDP and Liger",
    "1B on 2 p4d, all trained",
    "1B on 2 p4d, embeddings trained",
    "1B peak on p5 by the rule of 1.5 to 2 times the state",
    "70B, 314B tokens on 32 p5",
    "1B at 8,192 on 8 B200, batch 1",
    "1B at 8,192 on 8 B200, batch 1, recomputed",
    "1B at 8,192 on 8 B200, batch 1 (speed)",
    "1B at 8,192 on 8 B200, batch 16, recomputed (speed)",
}


def row(name: str) -> Row:
    (found,) = [each for each in rows() if each.name == name]
    return found


def test_exactly_the_rows_that_were_looked_into_are_not_explained() -> None:
    missed = {each.name for each in rows() if not each.explained}

    assert missed == NOT_EXPLAINED


def test_a_row_is_explained_where_it_is_within_its_tolerance() -> None:
    for each in rows():
        if each.tolerance_percent is not None:
            within = abs(each.difference_percent) <= each.tolerance_percent
            assert within == each.explained, each.name


def test_every_row_has_a_name_of_its_own_a_reason_and_a_source() -> None:
    found = rows()

    assert len({each.name for each in found}) == len(found)
    assert all(each.why and each.source and each.unit for each in found)
    assert not [each.name for each in found if "|" in each.why]


@pytest.mark.parametrize("shard", [1, 8])
def test_the_largest_batch_fits_and_one_more_does_not(shard: int) -> None:
    layout, work, p4d = Layout(data=8, shard=shard), Work(sequence_length=2_048), machine("p4d.24xlarge")

    size = largest_batch(ONE, layout, work, p4d)

    assert size >= 4
    assert layout_fit(ONE, replace(layout, micro_batch_size=size), work, p4d)[1] == "fits"
    assert layout_fit(ONE, replace(layout, micro_batch_size=size + 1), work, p4d)[1] != "fits"


def test_no_batch_of_70b_fits_on_one_gpu() -> None:
    assert largest_batch(SEVENTY, Layout(data=8), Work(sequence_length=8_192), machine("p5.48xlarge")) == 0


def test_fp32_state_does_not_explain_the_batches_of_p5_either() -> None:
    where = machine("p5.48xlarge")

    ddp = largest_batch(ONE, Layout(data=8), replace(TORCH, state="fp32"), where)
    liger = largest_batch(ONE, FSDP8, replace(LIGER, state="fp32"), where)

    assert ddp > 4
    assert liger > 18


def test_both_rows_of_the_model_state_miss_the_same_small_constant() -> None:
    one, eight = row("1B model state, one GPU"), row("1B model state, FSDP on 8 GPUs")

    missing = [(each.published - each.predicted) * 1024 for each in (one, eight)]

    assert missing[0] == pytest.approx(missing[1], abs=2 * 0.005 * 1024)
    assert "One unsharded 18 to 25 MiB" in one.why


def test_the_days_of_swallow_lie_in_the_range_that_a_plan_prints_but_do_not_count_as_explained() -> None:
    found = row("70B, 314B tokens on 32 p5")

    assert "MFU 36.8 % without attention, 42.5 % with it" in found.why
    assert "holds it" in found.why
    assert not found.explained
