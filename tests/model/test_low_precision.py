from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from anadil.core.errors import PreflightError, RecipeError
from anadil.model.kernels import checkpoint_layers, compile_layers, decoder_layers
from anadil.model.low_precision import (
    MatmulFormat,
    check_low_precision,
    low_precision_layers,
    plain_tensor,
    update_fp8_scales,
    use_low_precision,
)
from anadil.pretrain.parallel.tensor import apply_tensor_parallel
from tests.kit.llama import small_llama
from tests.kit.ranks import in_ranks

pytestmark = pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed")
KINDS: tuple[MatmulFormat, ...] = ("float8_tensorwise", "float8_rowwise", "mxfp8")
TOKENS = (torch.arange(128) * 7 + 3).reshape(2, 64) % 64
GPU = torch.device("cuda", 0)
BF16 = torch.bfloat16


def llama(dtype: torch.dtype = torch.float32, hidden_size: int = 64) -> LlamaForCausalLM:
    made = small_llama(hidden_size=hidden_size, intermediate_size=192)
    made.config.use_cache = False
    return made.to(dtype)


def converted(kind: MatmulFormat, dtype: torch.dtype = torch.float32, **options: Any) -> LlamaForCausalLM:
    made = llama(dtype)
    use_low_precision(decoder_layers(made), kind, emulated=True, **options)
    return made


def loss_of(made: nn.Module) -> torch.Tensor:
    logits: torch.Tensor = made(input_ids=TOKENS).logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), TOKENS[:, 1:].flatten())


def gradients(made: nn.Module) -> dict[str, torch.Tensor]:
    loss_of(made).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return {name: tensor.grad for name, tensor in made.named_parameters() if tensor.grad is not None}


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let torch tell of a GPU of some capability."""

    def of(capability: tuple[int, int], name: str = "NVIDIA H100 80GB HBM3") -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: name)

    return of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_near_those_of_whole_precision(kind: MatmulFormat, dtype: torch.dtype) -> None:
    reference = llama(dtype)
    expected = gradients(reference)

    made = converted(kind, dtype)
    actual = gradients(made)

    assert float(loss_of(made).detach()) == pytest.approx(float(loss_of(reference).detach()), rel=5e-3)
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        difference = (gradient - expected[name]).float().norm() / expected[name].float().norm()
        assert difference < 0.2, (name, difference)


@pytest.mark.parametrize("kind", KINDS)
def test_names_weights_and_the_head_stay_as_they_are(kind: MatmulFormat) -> None:
    reference = dict(llama().named_parameters())

    made = converted(kind)

    found = dict(made.named_parameters())
    assert list(found) == list(reference)
    assert all(torch.equal(found[name], reference[name]) for name in found)
    assert all(parameter.dtype == torch.float32 for parameter in found.values())
    assert type(made.lm_head) is nn.Linear
    assert type(made.model.layers[0].mlp.up_proj) is not nn.Linear


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_the_same_with_activations_made_again(kind: MatmulFormat) -> None:
    expected = gradients(converted(kind))

    for policy in ("selective", "full"):
        made = converted(kind)
        checkpoint_layers(decoder_layers(made), policy)
        found = gradients(made)
        assert all(torch.equal(found[name], expected[name]) for name in expected), policy


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_fp32_weights_get_fp32_gradients(kind: MatmulFormat) -> None:
    made = converted(kind)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(made)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    assert {parameter.grad.dtype for parameter in made.parameters() if parameter.grad is not None} == {
        torch.float32
    }


def test_same_changes_nothing() -> None:
    made = llama()

    assert use_low_precision(decoder_layers(made), "same") == 0
    assert {type(module) for module in made.modules()} == {type(module) for module in llama().modules()}


def test_matrices_that_do_not_fit_are_left_alone_and_told(caplog: pytest.LogCaptureFixture) -> None:
    made = llama(hidden_size=64)
    made.model.layers[0].mlp.up_proj = nn.Linear(64, 40, bias=False)

    with caplog.at_level("INFO"):
        num = use_low_precision(decoder_layers(made), "mxfp8", emulated=True)

    assert num == 13
    assert "13 matrices multiply in mxfp8; of each layer these do not: mlp.up_proj (40 x 64)" in caplog.text
    assert type(made.model.layers[0].mlp.up_proj) is nn.Linear


@pytest.mark.parametrize(("kind", "expected"), [("float8_tensorwise", 5), ("float8_rowwise", 2)])
def test_of_llama_3_2_1b_only_matrices_that_gain_are_converted(kind: MatmulFormat, expected: int) -> None:
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=1, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=64,
    )  # fmt: skip
    with torch.device("meta"):
        made = LlamaForCausalLM(config)

    assert use_low_precision(low_precision_layers(made, kind), kind) == expected


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("float8_rowwise", {}, r"matmul is float8_rowwise, but no matrix .* set pretrain.matmul to same"),
        ("mxfp8", {"tensor": 4, "emulated": True}, "multiples of 128"),
    ],
)
def test_a_model_of_matrices_too_small_to_be_faster_or_to_be_split_is_refused(
    kind: MatmulFormat, options: Any, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        use_low_precision(decoder_layers(llama()), kind, **options)


@pytest.mark.parametrize(
    ("kind", "capability", "name", "needed"),
    [
        ("float8_tensorwise", (8, 0), "NVIDIA A100-SXM4-40GB", "compute capability 8.9"),
        ("float8_rowwise", (8, 9), "NVIDIA L40S", "compute capability 9.0"),
        ("mxfp8", (9, 0), "NVIDIA H100 80GB HBM3", "compute capability 10.0"),
        ("nvfp4", (9, 0), "NVIDIA H200", "compute capability 10.0 to 10.x"),
        ("nvfp4", (12, 0), "NVIDIA GeForce RTX 5090", "compute capability 10.0 to 10.x"),
    ],
)
def test_a_gpu_without_the_format_is_refused_by_name(
    a_gpu: Any, kind: MatmulFormat, capability: tuple[int, int], name: str, needed: str
) -> None:
    a_gpu(capability, name)

    with pytest.raises(PreflightError, match=rf"pretrain\.matmul is {kind}, .* {needed}, and {name} has"):
        check_low_precision(kind, GPU, BF16, tokens=2048)


@pytest.mark.parametrize("kind", ["float8_tensorwise", "float8_rowwise"])
def test_a_gpu_with_the_format_is_accepted_and_warned_of_without_compilation(
    a_gpu: Any, kind: MatmulFormat, caplog: pytest.LogCaptureFixture
) -> None:
    a_gpu((9, 0))

    check_low_precision(kind, GPU, BF16, tokens=2048)
    assert caplog.text == ""

    check_low_precision(kind, GPU, BF16, tokens=2048, compiled=False)
    assert f"{kind} without pretrain.compile: casts cost more" in caplog.text


def test_a_cpu_and_missing_kernels_are_refused_with_the_remedy(a_gpu: Any) -> None:
    a_gpu((10, 0), "NVIDIA B200")
    with pytest.raises(PreflightError, match=r"a GPU of compute capability 8.9, and this process has a cpu"):
        check_low_precision("float8_tensorwise", torch.device("cpu"), BF16, tokens=2048)
    with pytest.raises(PreflightError, match=r"torchao's kernels do not load with torch 2"):
        check_low_precision("mxfp8", GPU, BF16, tokens=2048)


def test_contradicting_keys_are_refused(a_gpu: Any) -> None:
    a_gpu((10, 0), "NVIDIA B200")

    with pytest.raises(RecipeError, match=r"results are BF16, but pretrain.precision is fp32"):
        check_low_precision("nvfp4", GPU, torch.float32, tokens=2048)
    with pytest.raises(RecipeError, match=r"shares no matrix between processes, but .*tensor is 2"):
        check_low_precision("nvfp4", GPU, BF16, tokens=2048, tensor=2)
    with pytest.raises(RecipeError, match=r"a multiple of 128 tokens .* and there are 1000"):
        check_low_precision("nvfp4", GPU, BF16, tokens=1000)
    check_low_precision("nvfp4", GPU, BF16, tokens=2048)
    check_low_precision("same", torch.device("cpu"), torch.float32, tokens=1)


@pytest.mark.parametrize(("num_layers", "expected"), [(1, 0), (16, 13), (32, 27), (80, 68)])
def test_nvfp4_leaves_the_last_layers_in_bf16(num_layers: int, expected: int) -> None:
    with torch.device("meta"):
        made = LlamaForCausalLM(LlamaConfig(num_hidden_layers=num_layers, hidden_size=64, vocab_size=64))

    assert low_precision_layers(made, "nvfp4") == list(made.model.layers)[:expected]
    assert low_precision_layers(made, "mxfp8") == list(made.model.layers)


def test_a_pipeline_stage_of_the_last_layers_has_none_for_nvfp4() -> None:
    with torch.device("meta"):
        made = LlamaForCausalLM(LlamaConfig(num_hidden_layers=8, hidden_size=64, vocab_size=64))
    stage = {str(number): made.model.layers[number] for number in (5, 6, 7)}
    made.model.layers = nn.ModuleDict(stage)

    assert low_precision_layers(made, "nvfp4") == [stage["5"]]
    assert use_low_precision([], "nvfp4") == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_layers_give_the_same_gradients_by_one_program(kind: MatmulFormat) -> None:
    expected = gradients(converted(kind))
    torch._dynamo.reset()
    counters.clear()
    made = converted(kind)
    checkpoint_layers(decoder_layers(made), "selective")

    compile_layers(decoder_layers(made), backend="aot_eager")
    found = gradients(made)

    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    torch._dynamo.reset()


def trained(made: nn.Module, *, sharded: bool) -> list[float]:
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3, fused=True)
    losses = []
    for _ in range(3):
        loss = loss_of(made)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if sharded:
            update_fp8_scales(made)
        losses.append(float(loss.detach()))
    return losses


def split_by_tensor_parallelism(kind: MatmulFormat) -> None:
    """Matrices shared by two processes, and FSDP around them, against one process."""
    expected = float(states_of(converted(kind)).square().sum().detach())
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("shard", "tensor"))
    made = converted(kind, tensor=2, sharded=True)
    apply_tensor_parallel(made, mesh["tensor"], config=made.config)
    for layer in decoder_layers(made):
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(made.base_model, mesh=mesh["shard"])
    found = states_of(made).square().sum()
    found.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    update_fp8_scales(made)
    dist.all_reduce(found.detach_())
    assert float(found) == pytest.approx(expected, rel=1e-4), kind
    assert made.model.layers[0].mlp.up_proj.weight.grad is not None


def states_of(made: LlamaForCausalLM) -> torch.Tensor:
    positions = torch.arange(64).expand(2, 64)
    states: torch.Tensor = made.base_model(
        input_ids=TOKENS, position_ids=positions, use_cache=False
    ).last_hidden_state
    return states


def worker(_rank: int) -> None:
    """On each of two processes, which see the same batch."""
    mesh = init_device_mesh("cpu", (2,))
    for kind in KINDS:
        expected = trained(converted(kind, torch.bfloat16), sharded=False)
        made = converted(kind, torch.bfloat16, sharded=True)
        for layer in decoder_layers(made):
            fully_shard(layer, mesh=mesh)
        fully_shard(made, mesh=mesh)
        found = trained(made, sharded=True)
        assert found == pytest.approx(expected, rel=2e-3), (kind, found, expected)
        # FP32 weights that are gathered in less.
        mixed = converted(kind, sharded=True)
        for layer in decoder_layers(mixed):
            fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(BF16, torch.float32))
        fully_shard(mixed, mesh=mesh, mp_policy=MixedPrecisionPolicy(BF16, torch.float32))
        before = {name: plain_tensor(tensor) for name, tensor in mixed.named_parameters()}
        kept = {
            name: tensor.full_tensor().clone()
            for name, tensor in before.items()
            if isinstance(tensor, DTensor)
        }
        assert trained(mixed, sharded=True) == pytest.approx(expected, rel=2e-2), kind
        for name, tensor in before.items():
            assert isinstance(tensor, DTensor)
            assert type(tensor.to_local()) is torch.Tensor
            assert tensor.dtype == torch.float32
            assert not torch.equal(tensor.full_tensor(), kept[name]), "the memory is that of the weight"
        split_by_tensor_parallelism(kind)


@pytest.mark.slow
def test_fsdp_gathers_weights_and_gives_the_same_losses() -> None:
    in_ranks(worker, 2)
