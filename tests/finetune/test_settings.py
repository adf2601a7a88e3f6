"""What learns, and how: every setting trains, merges to what was trained, and resumes to the same curve."""

import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaMLP

from anadil.artifacts import storage
from anadil.core.errors import PreflightError, RecipeError
from anadil.finetune import training
from anadil.finetune.chat_format import CONTROL, chat_format
from anadil.finetune.learning import adapter_config, nf4, prepare_rows, refuse_quantization
from anadil.finetune.run import run
from anadil.finetune.training import TrainingCallback, num_steps
from anadil.model.load import load_model, load_tokenizer
from anadil.recipe.finetune import Finetune
from anadil.recipe.load import load_recipe
from anadil.runtime.job import Job
from tests.finetune.short_runs import ALL, NUM_CHATS, SETTINGS, WITHOUT_NOISE, curve, lines_of, trained
from tests.finetune.test_run import FOREIGN_WARNINGS, ONE_STEP, run_in
from tests.kit.marks import matrix
from tests.kit.ranks import in_forks

NAME = re.compile(r"base_model\.model\.model\.layers\.\d+\.(?:self_attn|mlp)\.(\w+)\.lora_[AB]\.weight")
EXPECTED = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
"""Modules of a Llama that vLLM puts LoRA into."""


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["none", "control"])
def test_vllm_takes_an_adapter_of_which_no_rows_of_the_embedding_learned(
    rows: str, model_dir: Path, many_chats: Path, tmp_path: Path
) -> None:
    out = trained(model_dir, many_chats, tmp_path / "work", ONE_STEP, f"finetune.trains_embeddings={rows}")

    settings = json.loads((out / "adapter_config.json").read_text())
    with safe_open(out / "adapter_model.safetensors", framework="pt") as file:
        names = list(file.keys())
    unknown = [name for name in names if not NAME.fullmatch(name)]

    assert {found[1] for name in names if (found := NAME.fullmatch(name))} == EXPECTED
    assert {"r", "lora_alpha", "target_modules"} <= settings.keys()
    assert (settings["bias"], settings["modules_to_save"], settings["use_dora"]) == ("none", None, False)
    # The guide says so: these rows are in the merged model, and vLLM has no place for them beside a base.
    assert [name.rpartition(".")[2] for name in unknown] == (
        ["trainable_tokens_delta"] if rows == "control" else []
    )


def test_four_bits_without_a_gpu_are_refused_before_chats_are_read(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing.jsonl"

    with pytest.raises(
        PreflightError, match=r"4bit needs an NVIDIA GPU, .* or set finetune.quantization to none"
    ):
        run_in(tmp_path, model_dir, missing, tmp_path / "out", "finetune.quantization=4bit")
    refuse_quantization(Finetune(), torch.device("cpu"))
    refuse_quantization(Finetune(quantization="4bit"), torch.device("cuda"))


def test_four_bits_are_the_normal_float_of_qlora() -> None:
    settings = nf4(torch.bfloat16)

    assert settings.load_in_4bit
    assert settings.bnb_4bit_quant_type == "nf4"
    assert settings.bnb_4bit_use_double_quant
    assert settings.bnb_4bit_compute_dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["trains=all", "rslora=true"], "rslora True is for an adapter, and trains is 'all'"),
        (["trains=all", "dora=true"], "dora True is for an adapter, and trains is 'all'"),
        (["trains=all", "quantization=4bit"], "quantization '4bit' is for an adapter, and trains is 'all'"),
        (["trains=all", "trains_embeddings=control"], "trains_embeddings 'control' is for an adapter"),
        (["patience=2"], "patience 2 waits for the validation loss, and validation_fraction is 0"),
        (["heldout_fraction=0.6", "validation_fraction=0.4"], "take 1 of the chats together"),
        (["schedule=wsd"], "must be 'cosine', 'linear' or 'constant'"),
        (["neftune_alpha=0"], "must be above 0"),
        (["gradient_accumulation=0"], "must be above 0"),
        (["weight_decay=-1"], "must be at least 0"),
        (["warmup_fraction=1.5"], "must be at most 1"),
        (["validation_fraction=1"], "must be below 1"),
        (["quantization=8bit"], "must be 'none' or '4bit'"),
        (["trains=embeddings"], "must be 'adapter' or 'all'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(keys: list[str], words: str) -> None:
    with pytest.raises(RecipeError) as raised:
        load_recipe("smoke", ["finetune.trains=adapter", *(f"finetune.{key}" for key in keys)])

    assert words in str(raised.value)


pytestmark = FOREIGN_WARNINGS

TOKENS = torch.arange(40).reshape(2, 20)


@pytest.fixture(scope="module")
def untied(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head has rows of its own."""
    folder = shutil.copytree(model_dir, tmp_path_factory.mktemp("untied") / "model")
    model: Any = load_model(model_dir)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone() * 1.5)
    model.save_pretrained(folder)
    return folder


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model.eval()(TOKENS).logits
    return result


def tensor_names(file: Path) -> list[str]:
    with safe_open(file, "pt") as tensors:
        return list(tensors.keys())


@pytest.mark.parametrize("name", ["rows of control tokens", matrix("all rows"), matrix("rsLoRA"), "DoRA"])
def test_the_merged_model_is_tied_and_computes_what_base_and_adapter_do(
    model_dir: Path, many_chats: Path, tmp_path: Path, name: str
) -> None:
    out = trained(model_dir, many_chats, tmp_path / "work", *SETTINGS[name])

    expected = logits(PeftModel.from_pretrained(load_model(model_dir), out))
    merged: Any = load_model(out / "merged")

    assert (logits(merged) - expected).abs().max() < 1e-5 * expected.abs().max()
    assert "lm_head.weight" not in tensor_names(out / "merged/model.safetensors")
    assert merged.config.tie_word_embeddings
    assert merged.get_input_embeddings().weight is merged.get_output_embeddings().weight


def test_only_the_rows_that_are_to_learn_do(model_dir: Path, many_chats: Path, tmp_path: Path) -> None:
    before: Any = load_model(model_dir)
    changed: dict[str, list[int]] = {}
    for name in ("no rows", "rows of control tokens", "all rows"):
        out = trained(model_dir, many_chats, tmp_path / name, *SETTINGS[name])
        after: Any = load_model(out / "merged")
        moved = (after.get_input_embeddings().weight - before.get_input_embeddings().weight).abs().amax(dim=1)
        changed[name] = moved.nonzero().flatten().tolist()

    control = chat_format(load_tokenizer(model_dir)).control
    assert changed["no rows"] == []
    # <|end_of_text|> is in no chat, but the head gives it a probability, which falls.
    assert changed["rows of control tokens"] == sorted(control.values())
    assert len(control) == len(CONTROL)
    assert len(changed["all rows"]) == len(load_tokenizer(model_dir))


@pytest.mark.slow
def test_spare_rows_of_the_embedding_stay_where_all_tokens_learn(
    model_dir: Path, many_chats: Path, tmp_path: Path
) -> None:
    folder, num_tokens = (
        shutil.copytree(model_dir, tmp_path / "model"),
        len(load_tokenizer(model_dir)),
    )
    model: Any = load_model(model_dir)
    model.resize_token_embeddings(num_tokens + 40)
    model.save_pretrained(folder)

    out = trained(folder, many_chats, tmp_path / "work", *SETTINGS["all rows"])

    before, merged = load_file(folder / "model.safetensors"), load_file(out / "merged/model.safetensors")
    moved = (before["model.embed_tokens.weight"] - merged["model.embed_tokens.weight"]).abs().amax(dim=1)
    assert moved.nonzero().flatten().tolist() == list(range(num_tokens))
    expected = logits(PeftModel.from_pretrained(load_model(folder), out))
    assert (logits(load_model(out / "merged")) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_a_head_with_rows_of_its_own_learns_them_too(untied: Path, many_chats: Path, tmp_path: Path) -> None:
    out = trained(untied, many_chats, tmp_path / "work", *SETTINGS["rows of control tokens"])

    before, merged = load_file(untied / "model.safetensors"), load_file(out / "merged/model.safetensors")
    expected = logits(PeftModel.from_pretrained(load_model(untied), out))

    control = chat_format(load_tokenizer(untied)).control
    read = [token for text, token in control.items() if text != "<|end_of_text|>"]  # which no chat holds
    for name, ids in (("model.embed_tokens.weight", read), ("lm_head.weight", control.values())):
        moved = (before[name] - merged[name]).abs().amax(dim=1).nonzero().flatten().tolist()
        assert moved == sorted(ids), name
    assert (logits(load_model(out / "merged")) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_all_weights_leave_the_model_and_no_adapter(
    model_dir: Path, many_chats: Path, tmp_path: Path
) -> None:
    out = trained(model_dir, many_chats, tmp_path / "work", *ALL)

    before, after = load_file(model_dir / "model.safetensors"), load_file(out / "merged/model.safetensors")
    training = json.loads((out / "training.json").read_text())
    assert sorted(path.name for path in out.iterdir()) == [
        "heldout_chats.jsonl", "mask_audit.json", "merged", "seen_chats.jsonl", "training.json",
        "training.jsonl",
    ]  # fmt: skip
    assert sorted(before) == sorted(after)
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert (training["trains"], training["trains_embeddings"]) == ("all", "all")
    assert training["parameters"] == sum(tensor.numel() for tensor in after.values())
    assert training["loss"] < training["first_loss"]


def test_the_embedding_learns_control_tokens_where_the_tokenizer_may_change(
    model_dir: Path, many_chats: Path, tmp_path: Path
) -> None:
    rows = {
        strategies: load_recipe("smoke", [f"tokenizer.strategies=[{strategies}]"]).trained_embeddings
        for strategies in ("base", "extend", "base, extend")
    }
    kept = load_recipe("smoke", ["tokenizer.choice=base"]).trained_embeddings
    out = trained(model_dir, many_chats, tmp_path / "work")

    assert rows == {"base": "none", "extend": "control", "base, extend": "control"}
    assert kept == "none"
    assert json.loads((out / "training.json").read_text())["trains_embeddings"] == "control"


def test_rows_learn_in_float32_on_a_model_in_bfloat16(model_dir: Path) -> None:
    model = load_model(model_dir, torch.bfloat16)
    config = adapter_config(Finetune(rank=8), "control", model, load_tokenizer(model_dir))
    with_adapter: Any = PeftModel(model, config)
    for parameter in with_adapter.parameters():
        # As TRL does where the model is quantized.
        parameter.data = parameter.data.to(torch.bfloat16)

    prepare_rows(with_adapter)

    rows = [each for name, each in with_adapter.named_parameters() if "trainable_tokens_delta" in name]
    assert [each.dtype for each in rows] == [torch.float32]
    assert torch.isfinite(logits(with_adapter)).all()


def test_gradients_of_two_small_batches_are_those_of_a_large_one(
    model_dir: Path, many_chats: Path, tmp_path: Path
) -> None:
    several, one = (
        trained(
            model_dir, many_chats, tmp_path / f"{batch}", *WITHOUT_NOISE, f"finetune.batch_size={batch}",
            f"finetune.gradient_accumulation={NUM_CHATS // batch}", "finetune.epochs=3",
        )
        for batch in (6, 12)
    )  # fmt: skip

    losses = [curve(out, "loss") for out in (several, one)]
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize(
    ("schedule", "shares"), [("cosine", (0.5, 0.0)), matrix("linear", (0.5, 0.0)), ("constant", (1.0, 1.0))]
)
def test_settings_of_the_recipe_and_not_defaults_of_trl_reach_the_trainer(
    model_dir: Path, many_chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str, shares: tuple[float, float]
) -> None:  # fmt: skip
    logged: list[Any] = []
    on_log = TrainingCallback.on_log

    def seen(self: TrainingCallback, args: Any, state: Any, control: Any, **more: Any) -> None:
        logged.extend([args, more["model"], more["logs"]])
        on_log(self, args, state, control, **more)

    monkeypatch.setattr(TrainingCallback, "on_log", seen)
    out = trained(
        model_dir, many_chats, tmp_path / "work", f"finetune.schedule={schedule}", "finetune.batch_size=1",
        "finetune.epochs=1", "finetune.warmup_fraction=0", "finetune.weight_decay=0.3", "finetune.neftune_alpha=15",
    )  # fmt: skip

    args, model, logs = logged[:3]
    assert (args.weight_decay, args.neftune_noise_alpha) == (0.3, 15)
    # On a CPU TRL would take BF16 and recompute activations, cut chats at 1,024 tokens, and log every tenth step.
    assert (args.bf16, args.gradient_checkpointing, args.max_length) == (False, False, None)
    assert (args.logging_steps, args.packing, args.use_liger_kernel, args.report_to) == (1, False, False, [])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    # It counts from 0 after a resume.
    assert "num_tokens" in logs
    assert all("num_tokens" not in line for line in lines_of(out))
    rates = curve(out, "lr")
    assert rates[0] == pytest.approx(0.01)
    assert rates[NUM_CHATS // 2] == pytest.approx(0.01 * shares[0], rel=1e-6)
    assert rates[-1] <= 0.01 * max(shares[1], 0.1)


def test_the_demo_asks_in_other_words_what_it_trains(model_dir: Path, tmp_path: Path) -> None:
    recipe = load_recipe("smoke", ["finetune.epochs=0.1", "finetune.max_length=256", "finetune.mix={}"])
    files = [storage.built_in(uri) for uri in (recipe.finetune.inputs[0], *recipe.evaluate.questions)]
    rows = [[json.loads(line)["messages"] for line in file.read_text("utf-8").splitlines()] for file in files]
    (seen, asked), (answers, expected) = (
        [[row[turn]["content"] for row in part] for part in rows] for turn in (0, 1)
    )
    (tmp_path / "out").mkdir()
    job = Job(
        recipe=recipe, inputs={"model": model_dir}, files=(str(files[0]),), out=tmp_path / "out", work=tmp_path,
        side_files={"evaluate.questions": (str(files[1]),)}, base_cache=tmp_path,
    )  # fmt: skip

    run(job)

    assert len({*map(str.lower, seen), *map(str.lower, asked)}) == len(seen) + len(asked)
    assert set(expected) < set(answers)
    assert job.records == {"rows": len(seen), "kept": len(seen), "dropped": 0}


@pytest.mark.parametrize(
    ("examples", "batch", "accumulation", "epochs", "steps"),
    [(4, 2, 1, 3, 6), (5, 2, 1, 0.5, 2), (1, 8, 1, 0.1, 1), (10, 2, 2, 2, 6)],
)
def test_epochs_may_be_fractions_and_steps_several_batches(
    examples: int, batch: int, accumulation: int, epochs: float, steps: int
) -> None:
    settings = Finetune(batch_size=batch, gradient_accumulation=accumulation, epochs=epochs)

    assert num_steps(examples, settings) == steps


def test_activations_that_are_made_again_change_no_weight(
    model_dir: Path, many_chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, whose mask must be drawn again as it was; a CPU does so where it cannot keep them."""
    passes: list[Any] = []
    part = LlamaMLP.forward

    def counted(layer: Any, states: torch.Tensor) -> torch.Tensor:
        passes.append(layer)
        result: torch.Tensor = part(layer, states)
        return result

    monkeypatch.setattr(LlamaMLP, "forward", counted)
    kept = trained(model_dir, many_chats, tmp_path / "kept")
    num_passes = len(passes)
    monkeypatch.setattr(training, "recomputes", lambda *_, **__: True)

    again = trained(model_dir, many_chats, tmp_path / "again")

    assert [line.get("loss") for line in lines_of(again)] == [line.get("loss") for line in lines_of(kept)]
    assert len(passes) == 3 * num_passes


def leaves_classes(work: Path, model: Path, chats: Path) -> None:
    """Train in a process that has not."""
    names = ("LlamaRMSNorm", "LlamaMLP", "apply_rotary_pos_emb")
    before = {name: vars(modeling_llama)[name] for name in names}
    forward = modeling_llama.LlamaForCausalLM.forward
    assert {each.__module__ for each in (forward, *before.values())} == {modeling_llama.__name__}

    run_in(work, model, chats, work / "out")

    assert before == {name: vars(modeling_llama)[name] for name in before}
    assert modeling_llama.LlamaForCausalLM.forward is forward
    assert "liger_kernel" not in sys.modules


@pytest.mark.slow
def test_training_leaves_the_classes_of_transformers_as_they_are(
    model_dir: Path, many_chats: Path, tmp_path: Path
) -> None:
    codes = in_forks([partial(leaves_classes, tmp_path, model_dir, many_chats)], tmp_path)

    assert codes == [0], (tmp_path / "0.log").read_text()
