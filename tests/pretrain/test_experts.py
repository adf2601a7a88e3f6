"""Mixtures of experts: stacks in training, an entry for each expert in files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from anadil.artifacts.weight_files import ALONE, stored_tensors
from anadil.core.errors import IntegrityError
from anadil.model.architecture import check_fit, empty_model
from anadil.model.tensor_names import ModelFiles
from anadil.pretrain.metrics_logger import FILE
from anadil.pretrain.run import run
from tests.kit.families import CPU, batches, build_in, make_family, make_vocabulary
from tests.kit.marks import matrix, slow
from tests.kit.pretraining import SHORT, losses, make_job, make_recipe, run_in_several

KINDS = [
    "mixtral",
    slow("gpt_oss"),
    *(matrix(kind) for kind in ("granitemoehybrid", "olmoe", "qwen2_moe", "qwen3_5_moe_text")),
    slow("qwen3_moe"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixture_is_trained_resumed_by_shards_and_written_with_an_entry_for_each_expert(
    tmp_path: Path, base: Path, kind: str
) -> None:
    made = make_family(tmp_path / "made", kind)
    for name in (ALONE, "config.json"):
        shutil.copy(made / name, base / name)
    settings: dict[str, Any] = {"phases": SHORT, "batch_size": 4, "micro_batch_size": 1}
    run(make_job(tmp_path, make_recipe(base, **settings), "one"))
    job = make_job(tmp_path, make_recipe(base, **settings, parallelism={"shard": 2}))

    codes = run_in_several(job, 2)

    assert codes == [0, 0]
    assert losses(job.out) == pytest.approx(losses(tmp_path / "one/out"), rel=1e-5)
    assert loads(job.work) == loads(tmp_path / "one/work")
    assert sorted(stored_tensors(job.out)) == sorted(stored_tensors(base))
    one, two = (AutoModelForCausalLM.from_pretrained(folder) for folder in (tmp_path / "one/out", job.out))
    before = dict(AutoModelForCausalLM.from_pretrained(base).named_parameters())
    for (name, expected), (_, found) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        assert (found - expected).norm() < 1e-3 * expected.norm(), name
        assert not torch.equal(found, before[name]), name


def test_a_mixture_saved_without_its_head_is_read_and_written_with_all_names(
    tmp_path: Path, base: Path
) -> None:
    made = load_file(make_family(tmp_path / "made", "mixtral", tie_word_embeddings=True) / ALONE)
    bare = {name.removeprefix("model."): each for name, each in made.items()}
    save_file(bare, base / ALONE, {"format": "pt"})
    shutil.copy(tmp_path / "made/config.json", base / "config.json")

    run(job := make_job(tmp_path, make_recipe(base, phases=SHORT, batch_size=2)))

    assert sorted(stored_tensors(job.out)) == sorted(made)
    _, found = AutoModelForCausalLM.from_pretrained(job.out, output_loading_info=True)
    assert not any(found.values())


def loads(work: Path) -> list[tuple[float, float]]:
    lines = [json.loads(line) for line in (work / FILE).read_text().splitlines()]
    return [(each["expert_load_max"], each["experts_idle"]) for each in lines if each["step"]]


@pytest.mark.parametrize("layout", [{}, matrix({"pipeline": 2}), slow({"context": 2})])
def test_tokens_by_expert_are_counted_over_all_processes(tmp_path: Path, base: Path, layout: Any) -> None:
    made = make_family(tmp_path / "made", "mixtral")
    shutil.copy(made / "config.json", base)
    tensors = load_file(made / ALONE)
    # Without a choice all tokens go to the first two of four experts in each of four layers.
    tensors |= {name: each * 0 for name, each in tensors.items() if name.endswith(".gate.weight")}
    save_file(tensors, base / ALONE, {"format": "pt"})
    once = [{"trains": "all", "steps": 1, "lr": 0.001}]
    recipe = make_recipe(base, phases=once, batch_size=4, micro_batch_size=1, parallelism=layout)
    job = make_job(tmp_path, recipe)

    assert run_in_several(job, 2) == [0, 0] if layout else run(job)

    assert loads(job.work) == [(2.0, 8)]


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_a_stack_are_those_of_the_stack_that_transformers_makes(tmp_path: Path, kind: str) -> None:
    make_family(tmp_path, kind)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    files = ModelFiles(tmp_path, model)

    for name, parameter in model.named_parameters():
        assert files.shape(name) == tuple(parameter.shape)
        assert torch.equal(files.read(name), parameter), name
        if parameter.dim() == 3:
            _, rows, columns = parameter.shape
            block = files.read(name, (1, rows // 4, 3), (2, rows // 2 + 1, columns - 3))
            assert torch.equal(block, parameter[1:3, rows // 4 : rows // 4 + rows // 2 + 1, 3:]), name


@pytest.mark.parametrize("kind", [slow("qwen3_5_moe_text"), matrix("olmo_hybrid")])
def test_a_model_is_written_with_the_tensors_of_its_base(tmp_path: Path, base: Path, kind: str) -> None:
    """Qwen 3.5 is published with stacks, where transformers saves entries; OLMo hybrid with other names than it saves."""
    made = make_family(tmp_path / "made", kind)
    model = empty_model(made)
    files = ModelFiles(made, model)
    tensors = {name: files.read(name).contiguous() for name in model.state_dict()}
    save_file(tensors, base / ALONE, {"format": "pt"})
    shutil.copy(made / "config.json", base)
    job = make_job(tmp_path, make_recipe(base, phases=[{"trains": "all", "steps": 1, "lr": 0.001}]))

    run(job)

    assert stored_tensors(job.out).keys() == tensors.keys() != stored_tensors(made).keys()
    check_fit(job.out)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            "experts.2.w3",
            r"layers.1.mlp.experts.2.w3.weight is missing, and .*gate_up_proj is made of 8 tensors, fetch",
        ),
        (
            "experts.3",
            r"layers.1.mlp.experts.3.w1.weight is missing, and .*gate_up_proj is made of 8 tensors",
        ),
        ("gate", r"1 missing, the first model.layers.1.mlp.gate.weight"),
    ],
)
def test_a_mixture_that_lacks_a_part_is_refused_by_its_name(tmp_path: Path, part: str, words: str) -> None:
    make_family(tmp_path, "mixtral")
    tensors = load_file(tmp_path / ALONE)
    kept = {name: each for name, each in tensors.items() if f"layers.1.block_sparse_moe.{part}." not in name}
    assert len(kept) < len(tensors)
    save_file(kept, tmp_path / ALONE, {"format": "pt"})

    with pytest.raises(IntegrityError, match=words):
        check_fit(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_that_spreads_tokens_is_that_of_transformers_where_config_asks_for_it(
    tmp_path: Path, kind: str
) -> None:
    make_family(tmp_path / "model", kind, output_router_logits=True, router_aux_loss_coef=0.5)
    make_vocabulary(tmp_path / "tokenizer")
    net = build_in({}, tmp_path / "model", tmp_path / "tokenizer", 0, 1)
    (batch,) = batches(1)
    num = batch.labels.numel()
    with torch.no_grad():
        nats = net.loss(batch).item()  # without it, in validation
    net.loss(batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    whole: Any = net.model
    ours = {name: each.grad.clone() for name, each in net.parameters().items() if each.grad is not None}
    net.model.zero_grad()

    states = whole.base_model(
        input_ids=batch.input_ids.to(CPU), position_ids=batch.position_ids, borders=batch.borders,
        use_cache=False, output_router_logits=True,
    )  # fmt: skip
    logits = whole.get_output_embeddings()(states.last_hidden_state) * net.objective.scale
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="sum")
    # Tokens an expert gets times its mean chance, each as a share, times their number (arXiv:2101.03961, equation 4).
    chances = torch.cat(states.router_logits).softmax(1)
    experts = chances.shape[1]
    chosen = torch.nn.functional.one_hot(chances.topk(2, 1).indices, experts).sum(1).float().mean(0)
    (plain + 0.5 * num * experts * (chosen * chances.mean(0)).sum()).backward()  # type: ignore[no-untyped-call]

    assert nats == pytest.approx(plain.item(), rel=1e-5)
    assert any("gate" in name or "router" in name for name in ours)
    for name, each in net.parameters().items():
        assert each.grad is not None
        assert (ours[name] - each.grad).norm() <= 1e-4 * each.grad.norm(), name
