import pytest
import torch

from anadil.pretrain.parallel import parallelize
from anadil.pretrain.parallel.parallelize import compute_dtype
from anadil.recipe.load import load_recipe

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("precision", "has_products", "expected"),
    [
        ("auto", True, torch.bfloat16),
        ("auto", False, torch.float32),
        ("bf16", True, torch.bfloat16),
        ("bf16", False, torch.float32),
        ("fp32", True, torch.float32),
    ],
)
def test_a_cpu_computes_in_bf16_where_it_has_such_products(
    precision: str, has_products: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_recipe("smoke", [f"pretrain.precision={precision}"]).pretrain
    monkeypatch.setattr(parallelize, "has_fast_bf16", lambda device: device == GPU or has_products)

    assert compute_dtype(settings, CPU) == expected
    assert compute_dtype(settings, GPU) == (torch.float32 if precision == "fp32" else torch.bfloat16)
