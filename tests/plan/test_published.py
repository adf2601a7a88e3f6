from dataclasses import replace

import pytest
from benchmarks.plan.published import Row, largest_batch, rows

from anadil.plan.instances import machine
from anadil.plan.layout import Layout, Work
from anadil.plan.memory import layout_fit
from tests.kit.plans import ONE

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
