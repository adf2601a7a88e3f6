import logging
from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config
from transformers.models.llama import modeling_llama

from anadil.core.errors import PreflightError
from anadil.model.attention import check_gpu
from anadil.model.family_table import families
from anadil.model.kernels import set_up_device, use_liger_kernels
from tests.kit.llama import small_llama
from tests.kit.marks import gpu

GPU = torch.device("cuda", 0)
PATCHES = ("apply_rotary_pos_emb", "LlamaRMSNorm", "LlamaMLP")


@pytest.fixture(autouse=True)
def llama_is_put_back_and_the_gpu_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PATCHES:
        monkeypatch.setattr(modeling_llama, name, getattr(modeling_llama, name))
    check_gpu.cache_clear()


@pytest.fixture
def tf32_is_on() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def patched() -> list[str]:
    return [name for name in PATCHES if "liger" in getattr(modeling_llama, name).__module__]


@pytest.mark.parametrize(
    ("policy", "config", "expected"),
    [
        ("none", None, list(PATCHES)),
        ("full", LlamaConfig(), list(PATCHES)),
        ("selective", LlamaConfig(), ["LlamaRMSNorm", "LlamaMLP"]),
        ("none", LlamaConfig(mlp_bias=True), ["apply_rotary_pos_emb", "LlamaRMSNorm"]),
    ],
)
def test_liger_replaces_what_it_does_right(
    policy: str, config: LlamaConfig | None, expected: list[str]
) -> None:
    pytest.importorskip("liger_kernel")

    use_liger_kernels(policy, config=config)

    assert patched() == expected


UNTRIED = {
    "exaone4", "gemma", "gemma2", "gemma3_text", "gemma4_text", "glm4", "gpt_oss", "granite", "hunyuan_v1_dense",
    "ministral", "mistral", "mixtral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_moe", "smollm3",
}  # fmt: skip
"""Types that Liger patches and whose kernels nobody compared with transformers on a GPU."""


def test_every_type_that_liger_patches_is_patched_or_known_to_be_untried() -> None:
    patches = pytest.importorskip("liger_kernel.transformers.monkey_patch").MODEL_TYPE_TO_APPLY_LIGER_FN
    named = {kind: family.liger for kind, family in families().items() if family.liger}

    assert {kind: patches[kind].__name__ for kind in named} == named
    assert patches.keys() & families().keys() - named.keys() == UNTRIED


def test_back_ends_of_other_chips_are_not_missed() -> None:
    registry = pytest.importorskip("liger_kernel.backends.registry")

    use_liger_kernels("none")

    assert not registry.logger.isEnabledFor(logging.WARNING)


def test_compiled_layers_keep_torch_s_operations_and_liger_is_refused_for_what_is_no_llama() -> None:
    use_liger_kernels("none", compiled=True)
    with pytest.raises(PreflightError, match=r"kernels is liger.* of the type mistral; set it to auto"):
        use_liger_kernels("none", config=MistralConfig(), kernels="liger")

    assert patched() == []


def test_auto_says_that_only_the_loss_is_liger_s_for_what_is_no_llama(
    caplog: pytest.LogCaptureFixture,
) -> None:
    use_liger_kernels("none", config=Qwen2Config(), kernels="auto")

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "of the type qwen2" in caplog.text
    assert "the loss alone is Liger's" in caplog.text
    assert patched() == []


@pytest.mark.usefixtures("tf32_is_on")
def test_fp32_products_stay_fp32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)

    set_up_device(GPU, torch.bfloat16)

    assert chosen == [GPU]
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert not torch.backends.cuda.matmul.allow_tf32


def test_a_gpu_without_bf16_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla V100-SXM2-16GB")

    with pytest.raises(PreflightError, match=r"BF16 needs .* 8.0 or more, and Tesla V100.* has 7.0.*to fp32"):
        set_up_device(GPU, torch.bfloat16)


@pytest.mark.usefixtures("tf32_is_on")
def test_a_cpu_has_nothing_to_set() -> None:
    set_up_device(torch.device("cpu"), torch.float32)

    assert torch.get_float32_matmul_precision() == "high"


@gpu()
@pytest.mark.parametrize("policy", ["none", "full", "selective"])
def test_liger_s_kernels_give_states_and_gradients_of_torch_s(policy: str) -> None:
    pytest.importorskip("liger_kernel")
    ids = torch.arange(48, device=GPU).reshape(2, 24) % 64
    plain = small_llama(hidden_size=256, intermediate_size=512).to(GPU)
    expected = plain.base_model(input_ids=ids, use_cache=False).last_hidden_state
    expected.square().sum().backward()

    use_liger_kernels(policy, config=LlamaConfig())
    model = small_llama(hidden_size=256, intermediate_size=512).to(GPU)
    found = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    found.square().sum().backward()

    assert (found - expected).abs().max() < 1e-4
    for (name, ours), (_, theirs) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        if theirs.grad is not None:
            assert (ours.grad - theirs.grad).norm() < 1e-3 * theirs.grad.norm(), name
