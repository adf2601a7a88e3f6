"""One table of model families, which every layout, the planner and the kernels ask."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from anadil.core.errors import PreflightError
from anadil.model import families as package
from anadil.model.family import TENSOR_LAYOUTS, Architecture, Family
from anadil.model.family_table import LAYOUTS, MODULES, check_family, families, model_types
from anadil.plan.model_shape import shape_from

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 9,
}


def test_one_record_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = Family(
        model_type="newer",
        layouts=TENSOR_LAYOUTS,
        architecture=Architecture(has_bias=True, bias="inputs", defaults={"head_dim": 64}),
    )
    monkeypatch.setitem(families(), "newer", newer)

    check_family({"model_type": "newer"}, {"shard": 2, "tensor": 2})
    with pytest.raises(
        PreflightError, match=r"pipeline: 2 is not proven .* 'newer'.*share the model with shard"
    ):
        check_family({"model_type": "newer"}, {"pipeline": 2})
    shape = shape_from({"model_type": "newer", **SIZES}, "newer")

    assert (shape.head_dim, shape.biases) == (64, 3 * 2 * 64)


def test_a_type_is_in_one_family_and_every_module_in_the_table() -> None:
    modules = {each.name for each in pkgutil.iter_modules(package.__path__)}
    listed = [family.model_type for module in MODULES for family in module.FAMILIES]

    assert {module.__name__.rpartition(".")[2] for module in MODULES} == modules
    assert sorted(listed) == model_types()


def test_each_layout_of_a_family_is_one_that_shards_too() -> None:
    for family in families().values():
        assert family.layouts <= set(LAYOUTS)
        assert not family.layouts or "shard" in family.layouts, family.model_type


def test_the_table_is_read_without_torch() -> None:
    code = (
        "import sys; from anadil.model.family_table import families; families();"
        " sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_table_marks_layouts_that_no_published_checkpoint_can_have() -> None:
    table = (Path(__file__).parents[2] / "docs/reference/model-families.md").read_text(encoding="utf-8")
    marked = {line.split("|")[1].strip() for line in table.splitlines() if r"`tensor` \*" in line}

    assert marked == {
        kind for kind, each in families().items() if each.published_tied and "tensor" in each.layouts
    }
    assert "smollm3" in marked
    assert "llama" not in marked
