import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

from anadil.core.errors import PreflightError
from anadil.model.architecture import empty_model
from anadil.model.attention import use_packed_attention
from anadil.model.kernels import Policy, checkpoint_layers, decoder_layers
from anadil.model.loss import IGNORED, summed_loss
from anadil.model.process_group import Group
from anadil.model.safetensors_files import SafetensorsFiles
from anadil.pretrain.parallel.fsdp import shard
from anadil.pretrain.parallel.loss_forward import train_on
from anadil.pretrain.parallel.mesh import Mesh, mesh_of
from anadil.pretrain.parallel.parallelize import load_weights
from anadil.pretrain.parallel.tensor import (
    LocalNorm,
    apply_tensor_parallel,
    check_tensor,
    summed_loss_of_head,
)
from anadil.recipe.pretrain import Parallelism
from tests.kit.llama import SIZES
from tests.kit.ranks import in_ranks
from tests.pretrain.parallel.test_grad_norm import clipped_norm

CPU = torch.device("cpu")
FP32 = MixedPrecisionPolicy()
LENGTH = 16
BORDERS = torch.tensor([0, 5, 16, 28, 32, 48, 49, 64], dtype=torch.int32)
"""Documents of four rows."""


def config(**changes: Any) -> LlamaConfig:
    own = {"vocab_size": 96, "intermediate_size": 48, "tie_word_embeddings": False, "initializer_range": 0.1}
    return LlamaConfig(**{**SIZES, **own, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model directory with norms that are not all ones."""
    torch.manual_seed(1)
    model = LlamaForCausalLM(config())
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, 1, 0.2)
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def rows_of(rank: int, ranks: int) -> dict[str, Any]:
    """This rank's rows of the batch, with the borders of their documents."""
    random = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 96, (4, LENGTH), generator=random)
    labels = torch.randint(0, 96, (4, LENGTH), generator=random)
    labels[1, 3:6] = IGNORED
    positions = torch.cat([torch.arange(size) for size in BORDERS.diff().tolist()]).view(4, LENGTH)
    rows = slice(rank * 4 // ranks, (rank + 1) * 4 // ranks)
    begin, end = rows.start * LENGTH, rows.stop * LENGTH
    borders = BORDERS[(begin <= BORDERS) & (end >= BORDERS)] - begin
    return {
        "input_ids": ids[rows],
        "position_ids": positions[rows],
        "labels": labels[rows],
        "borders": borders.numpy(),
    }


def reference(folder: str) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(folder)
    use_packed_attention(model)
    train_on(model, summed_loss)
    return model


def spread(folder: str, mesh: Mesh, policy: Policy = "none", precision: MixedPrecisionPolicy = FP32) -> Any:
    assert mesh.parameters is not None
    model = empty_model(Path(folder))
    use_packed_attention(model)
    apply_tensor_parallel(model, mesh.parameters["tensor"], config=model.config)
    checkpoint_layers(decoder_layers(model), policy)
    if mesh.shard > 1:
        shard(model, decoder_layers(model), mesh, precision)
    load_weights(model, SafetensorsFiles(Path(folder)), CPU)
    train_on(model, summed_loss_of_head)
    return model


def close(ours: Any, theirs: Any, name: str = "") -> None:
    whole = ours.full_tensor() if isinstance(ours, DTensor) else ours
    assert (whole - theirs).norm() <= 1e-5 * theirs.norm(), name


def compare(rank: int, folder: str, mesh: Mesh, policy: Policy) -> None:
    """Loss, every gradient, their norm and the clipped gradients are those of one process."""
    whole, model = reference(folder), spread(folder, mesh, policy)
    expected = whole(**rows_of(0, 1)) / 60
    expected.backward()
    loss = model(**rows_of(mesh.data_rank, mesh.data)) / 60
    loss.backward()
    assert mesh.batches is not None
    total = loss.detach().clone()
    torch.distributed.all_reduce(total, group=mesh.batches["data"].get_group())
    close(total, expected.detach())
    gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters()), (
        "a plain parameter would be updated apart on each process"
    )
    norm = clipped_norm(model.parameters(), 0.5, mesh)
    assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(whole.parameters(), 0.5)), rel=1e-6)
    for name, parameter in model.named_parameters():
        close(parameter.grad, gradients[name], name)


def two(rank: int, folder: str) -> None:
    mesh = mesh_of(Parallelism(tensor=2), Group(rank=rank, size=2), "cpu")
    for policy in ("none", "selective", "full"):
        compare(rank, folder, mesh, policy)
    middle_stage(folder, mesh)
    fused_norm(mesh)
    unknown_layer(mesh)


def compiled(rank: int, folder: str) -> None:
    """torch.compile follows a layer from end to end; it takes the embeddings for what they are."""
    mesh = mesh_of(Parallelism(tensor=2), Group(rank=rank, size=2), "cpu")
    whole, model = reference(folder), spread(folder, mesh)
    for layer in model.model.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    for each in (whole, model):
        each(**rows_of(0, 1)).backward()
    for (name, ours), theirs in zip(model.named_parameters(), whole.parameters(), strict=True):
        close(ours.grad, theirs.grad, name)


def unknown_layer(mesh: Mesh) -> None:
    """Weights that the plan does not know would learn apart on each process."""
    assert mesh.parameters is not None
    model = LlamaForCausalLM(config())
    model.model.layers[1].self_attn.q_norm = nn.RMSNorm(8)
    with pytest.raises(PreflightError, match=r"llama model is not a Llama's \(self_attn.q_norm\); set it"):
        apply_tensor_parallel(model, mesh.parameters["tensor"], config=config())


def middle_stage(folder: str, mesh: Mesh) -> None:
    """A stage without embeddings, norm and head, as a pipeline cuts it out."""
    assert mesh.parameters is not None
    whole: Any = reference(folder)
    stage = nn.Module()
    stage.model = nn.Module()
    stage.model.layers = nn.ModuleDict({"1": copy.deepcopy(whole.model.layers[1])})
    apply_tensor_parallel(stage, mesh.parameters["tensor"], config=whole.config)
    batch = rows_of(0, 1)
    states = torch.randn(4, LENGTH, 32, generator=torch.Generator().manual_seed(5))
    turned = whole.model.rotary_emb(states, batch["position_ids"])
    own = slice(mesh.tensor_rank * LENGTH // 2, (mesh.tensor_rank + 1) * LENGTH // 2)

    kept = {"position_embeddings": turned, "borders": BORDERS}
    expected = whole.model.layers[1](states, **kept)
    made = stage.model.layers["1"](states[:, own].clone(), **kept)

    close(made, expected[:, own])


class PlainTensors(torch.autograd.Function):
    """In the place of Liger's kernel, which needs a GPU: knows plain tensors only, as that does."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, eps: float, *settings: Any) -> torch.Tensor:
        assert type(hidden) is torch.Tensor
        assert type(weight) is torch.Tensor
        assert settings == (0.0, "llama", True, None)
        ctx.save_for_backward(hidden, weight)
        ctx.eps = eps
        normed: torch.Tensor = nn.functional.rms_norm(hidden, weight.shape, weight, eps)
        return normed

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        with torch.enable_grad():
            hidden, weight = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
            normed = nn.functional.rms_norm(hidden, weight.shape, weight, ctx.eps)
        gradients = torch.autograd.grad(normed, (hidden, weight), upstream)
        upstream.copy_(gradients[0])  # in the memory of what came in, as Liger does
        return upstream, gradients[1], *[None] * 5


def fused_norm(mesh: Mesh) -> None:
    """Liger's norm gets plain tensors; what it returns and what its weight learns are whole."""
    from liger_kernel.transformers import rms_norm

    assert mesh.parameters is not None
    rms_norm.LigerRMSNormFunction = PlainTensors
    torch.manual_seed(2)
    states = torch.randn(4, LENGTH, 32)
    weight = torch.randn(32)
    norm = rms_norm.LigerRMSNorm(32, eps=1e-5)
    norm.weight.data.copy_(weight)
    parallelize_module(norm, mesh.parameters["tensor"], LocalNorm())
    expected_weight = weight.clone().requires_grad_()
    expected = nn.functional.rms_norm(states, (32,), expected_weight, 1e-5)
    expected.square().sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    own = states.chunk(2, 1)[mesh.tensor_rank].clone().requires_grad_()

    made = norm(own)
    made.square().sum().backward()

    close(made, expected.chunk(2, 1)[mesh.tensor_rank])
    close(norm.weight.grad.full_tensor(), expected_weight.grad)


def four(rank: int, folder: str) -> None:
    mesh = mesh_of(Parallelism(tensor=2, shard=2), Group(rank=rank, size=4), "cpu")
    compare(rank, folder, mesh, "none")
    bf16(folder, mesh)


def bf16(folder: str, mesh: Mesh) -> None:
    whole = reference(folder)
    whole(**rows_of(0, 1)).backward()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = spread(folder, mesh, precision=policy)
    loss = model(**rows_of(mesh.data_rank, mesh.data))
    loss.backward()
    assert loss.dtype == torch.float32
    for (name, ours), theirs in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert theirs.grad is not None
        assert ours.dtype == ours.grad.dtype == torch.float32
        assert (ours.grad.full_tensor() - theirs.grad).norm() < 0.05 * theirs.grad.norm(), name


def test_two_processes_compute_what_one_does_also_recomputed_or_a_stage_of_the_layers(folder: Path) -> None:
    in_ranks(two, 2, str(folder))


@pytest.mark.matrix
def test_compiled_layers_of_two_processes_compute_what_one_does(folder: Path) -> None:
    in_ranks(compiled, 2, str(folder))


def test_four_processes_that_share_products_and_parameters_compute_what_one_does(folder: Path) -> None:
    in_ranks(four, 4, str(folder))


@pytest.mark.parametrize(
    ("changes", "degree", "length", "text"),
    [
        ({}, 3, 15, r"3 does not divide the model's 4 attention heads; choose a divisor"),
        ({}, 4, 16, r"4 does not divide the model's 2 key-value heads"),
        ({"intermediate_size": 49}, 2, 16, r"49 columns of the MLP"),
        ({"vocab_size": 97}, 2, 16, r"97 tokens of the vocabulary; .*tokenizer whose number of tokens"),
        ({}, 2, 15, r"15 tokens of a sequence.*change pretrain.sequence_length"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    changes: dict[str, Any], degree: int, length: int, text: str
) -> None:
    with pytest.raises(PreflightError, match=text):
        check_tensor(config(**changes), degree, length)


def test_one_process_is_never_refused() -> None:
    check_tensor(config(tie_word_embeddings=True, vocab_size=97), 1, 15)
