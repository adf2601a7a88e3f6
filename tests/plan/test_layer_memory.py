"""The table of layers of hybrid types, beside what its command finds anew."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anadil.estimate import layer_memory
from anadil.estimate.layout import Work
from anadil.model.family_table import families

TABLE: dict[str, Any] = json.loads(
    Path(layer_memory.__file__).with_suffix(".json").read_text(encoding="utf-8")
)


def test_every_hybrid_type_has_the_rows_that_its_command_makes() -> None:
    from benchmarks.plan import layers

    hybrids = {name for name, family in families().items() if family.recurrent}

    assert {name: set(kinds) for name, kinds in TABLE.items()} == {
        name: set(each) for name, each in layers.KINDS.items()
    }
    assert set(TABLE) == hybrids


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recompute"), [("conv", "none"), ("full_attention", "selective")])
def test_the_command_finds_the_rows_of_the_table(name: str, recompute: Any) -> None:
    from benchmarks.plan import layers

    kind, chance = layers.KINDS["lfm2"][name], random.Random(7)
    work = Work(sequence_length=layers.TOKENS, trains="embeddings", kernels="torch")
    sizes = [layers.small(chance) for _ in range(len(kind.token) + 4)]

    found, _ = layers.fitted_step(kind, sizes, [(layers.large(chance), 4_096)], work, recompute)

    row = TABLE["lfm2"][name]["steps"][f"autocast embeddings {recompute}"]
    assert found["saved"] == row["saved"]
    assert all(moment in row["backward"] for moment in found["backward"])


def test_a_sum_that_products_of_sizes_do_not_explain_ends_the_command() -> None:
    from benchmarks.plan import layers

    sizes = [{"hidden": value} for value in (2, 3, 5, 7)]
    squares = np.array([4.0, 9.0, 25.0, 49.0])

    assert layers.named(layers.factors(squares, sizes, ["hidden*hidden"], "bytes"), ["hidden*hidden"]) == {
        "hidden*hidden": 1
    }
    with pytest.raises(SystemExit, match=r"bytes: \['hidden'\] do not explain it"):
        layers.factors(squares, sizes, ["hidden"], "bytes")
