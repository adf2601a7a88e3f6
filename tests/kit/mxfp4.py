"""Experts packed in MXFP4, as GPT-OSS publishes them."""

import torch

GRID = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
STACKS = ("experts.gate_up_proj", "experts.down_proj")


def in_groups(stack: torch.Tensor) -> torch.Tensor:
    """Rows of (experts, columns, rows) in groups of 32 that share a scale."""
    num, columns, rows = stack.shape
    return stack.transpose(1, 2).reshape(num, rows, columns // 32, 32)


def pack(stack: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks and scales of (experts, columns, rows), each value by the nearest of the format."""
    groups = in_groups(stack.float())
    power = groups.abs().amax(-1).log2().floor() - 2
    codes = (groups.abs() / 2 ** power[..., None]).unsqueeze(-1).sub(GRID).abs().argmin(-1)
    codes = (codes + 8 * (groups < 0)).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, (power + 127).to(torch.uint8)


def pack_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors with two in place of each stack."""
    packed = {name: each for name, each in tensors.items() if not name.endswith(STACKS)}
    for name in tensors.keys() - packed.keys():
        packed[f"{name}_blocks"], packed[f"{name}_scales"] = pack(tensors[name])
    return packed
