"""What learns, and how: every setting trains, merges to what was trained, and resumes to the same curve."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file

from anadil.finetune.chat_format import CONTROL, chat_format
from anadil.finetune.learning import adapter_config, prepare_rows
from anadil.finetune.lora import TrainingCallback
from anadil.finetune.validation import best_step, is_over
from anadil.model.load import load_model, load_tokenizer
from anadil.recipe.finetune import Finetune
from anadil.recipe.load import load_recipe
from tests.finetune.test_run import SMALL, run_in
from tests.kit.marks import slow

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::pydantic.warnings.PydanticDeprecationWarning",
)

TOKENS = torch.arange(40).reshape(2, 20)
NUM_CHATS = 12
ALL = ("finetune.trains=all",)
VALIDATED = ("finetune.validation_fraction=0.3",)
WITHOUT_NOISE = ("finetune.dropout=0",)
SETTINGS: dict[str, tuple[str, ...]] = {
    "rows of control tokens": ("finetune.trains_embeddings=control",),
    "no rows": ("finetune.trains_embeddings=none",),
    "all rows": ("finetune.trains_embeddings=all",),
    "all weights": ALL,
    "rsLoRA": ("finetune.rslora=true",),
    "DoRA": ("finetune.dora=true",),
    "noise": ("finetune.neftune_alpha=5",),
    "noise, all weights": ("finetune.neftune_alpha=5", *ALL),
    "line": ("finetune.schedule=linear", "finetune.weight_decay=0.1", "finetune.warmup_fraction=0.2"),
    "no fall": ("finetune.schedule=constant",),
    "accumulation": ("finetune.gradient_accumulation=2",),
    "validation": VALIDATED,
    "early stop": (*VALIDATED, "finetune.patience=2", "finetune.lr=0.1"),
}
RESUMED = ("all rows", "DoRA", "noise", "line", "accumulation")


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    rows = [
        {"prompt": f"Azərbaycanın {number}-ci şəhəri hansıdır?", "response": f"Şəhər {number * 7}, balans."}
        for number in range(NUM_CHATS)
    ]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def untied(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head has rows of its own."""
    folder = shutil.copytree(model_dir, tmp_path_factory.mktemp("untied") / "model")
    model: Any = load_model(model_dir)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone() * 1.5)
    model.save_pretrained(folder)
    return folder


def trained(model: Path, chats: Path, work: Path, *overrides: str) -> Path:
    """The artifact of a short run."""
    work.mkdir(exist_ok=True)
    # A third of the chats may be held out to validate; see `split_of`.
    return run_in(work, model, chats, work / "out", "finetune.heldout_fraction=0", *overrides)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(TOKENS).logits
    return found


def tensor_names(file: Path) -> list[str]:
    with safe_open(file, "pt") as tensors:
        return list(tensors.keys())


@pytest.mark.parametrize("name", ["rows of control tokens", "all rows", "rsLoRA", "DoRA"])
def test_the_merged_model_is_tied_and_computes_what_base_and_adapter_do(
    model_dir: Path, chats: Path, tmp_path: Path, name: str
) -> None:
    out = trained(model_dir, chats, tmp_path / "work", *SETTINGS[name])

    expected = logits(PeftModel.from_pretrained(load_model(model_dir), out))
    merged: Any = load_model(out / "merged")

    assert (logits(merged) - expected).abs().max() < 1e-5 * expected.abs().max()
    assert "lm_head.weight" not in tensor_names(out / "merged/model.safetensors")
    assert merged.config.tie_word_embeddings
    assert merged.get_input_embeddings().weight is merged.get_output_embeddings().weight


def test_only_the_rows_that_are_to_learn_do(model_dir: Path, chats: Path, tmp_path: Path) -> None:
    before: Any = load_model(model_dir)
    changed: dict[str, list[int]] = {}
    for name in ("no rows", "rows of control tokens", "all rows"):
        out = trained(model_dir, chats, tmp_path / name, *SETTINGS[name])
        after: Any = load_model(out / "merged")
        moved = (after.get_input_embeddings().weight - before.get_input_embeddings().weight).abs().amax(dim=1)
        changed[name] = moved.nonzero().flatten().tolist()

    control = chat_format(load_tokenizer(model_dir)).control
    assert changed["no rows"] == []
    # <|end_of_text|> is in no chat, but the head gives it a probability, which falls.
    assert changed["rows of control tokens"] == sorted(control.values())
    assert len(control) == len(CONTROL)
    assert len(changed["all rows"]) == len(load_tokenizer(model_dir))


def test_a_head_with_rows_of_its_own_learns_them_too(untied: Path, chats: Path, tmp_path: Path) -> None:
    out = trained(untied, chats, tmp_path / "work", *SETTINGS["rows of control tokens"])

    before, merged = load_file(untied / "model.safetensors"), load_file(out / "merged/model.safetensors")
    expected = logits(PeftModel.from_pretrained(load_model(untied), out))

    control = chat_format(load_tokenizer(untied)).control
    read = [token for text, token in control.items() if text != "<|end_of_text|>"]  # which no chat holds
    for name, ids in (("model.embed_tokens.weight", read), ("lm_head.weight", control.values())):
        moved = (before[name] - merged[name]).abs().amax(dim=1).nonzero().flatten().tolist()
        assert moved == sorted(ids), name
    assert (logits(load_model(out / "merged")) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_all_weights_leave_the_model_and_no_adapter(model_dir: Path, chats: Path, tmp_path: Path) -> None:
    out = trained(model_dir, chats, tmp_path / "work", *ALL)

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
    model_dir: Path, chats: Path, tmp_path: Path
) -> None:
    rows = {
        strategies: load_recipe("smoke", [f"tokenizer.strategies=[{strategies}]"]).trained_embeddings
        for strategies in ("base", "extend", "base, extend")
    }
    kept = load_recipe("smoke", ["tokenizer.choice=base"]).trained_embeddings
    out = trained(model_dir, chats, tmp_path / "work")

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
    model_dir: Path, chats: Path, tmp_path: Path
) -> None:
    several, one = (
        trained(
            model_dir, chats, tmp_path / f"{batch}", *WITHOUT_NOISE, f"finetune.batch_size={batch}",
            f"finetune.gradient_accumulation={NUM_CHATS // batch}", "finetune.epochs=3",
        )
        for batch in (6, 12)
    )  # fmt: skip

    losses = [curve(out, "loss") for out in (several, one)]
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [("cosine", (0.5, 0.0)), ("linear", (0.5, 0.0)), ("constant", (1.0, 1.0))],
)
def test_the_rate_follows_the_schedule(
    model_dir: Path, chats: Path, tmp_path: Path, schedule: str, shares: tuple[float, float]
) -> None:
    out = trained(
        model_dir, chats, tmp_path / "work", f"finetune.schedule={schedule}", "finetune.batch_size=1",
        "finetune.epochs=1", "finetune.warmup_fraction=0",
    )  # fmt: skip

    rates = curve(out, "lr")
    assert rates[0] == pytest.approx(0.01)
    assert rates[NUM_CHATS // 2] == pytest.approx(0.01 * shares[0], rel=1e-6)
    assert rates[-1] <= 0.01 * max(shares[1], 0.1)


def test_noise_on_embeddings_changes_the_loss_and_leaves_no_trace_in_the_model(
    model_dir: Path, chats: Path, tmp_path: Path
) -> None:
    quiet, noisy = (
        trained(model_dir, chats, tmp_path / name, *ALL, *more)
        for name, more in (("quiet", ()), ("noisy", ("finetune.neftune_alpha=15",)))
    )

    assert curve(noisy, "loss")[0] != curve(quiet, "loss")[0]
    model = load_model(noisy / "merged")
    assert torch.equal(logits(model), logits(model))


def test_weight_decay_makes_weights_smaller(model_dir: Path, chats: Path, tmp_path: Path) -> None:
    sizes = [
        load_file(
            trained(model_dir, chats, tmp_path / decay, *ALL, f"finetune.weight_decay={decay}")
            / "merged/model.safetensors"
        )["model.embed_tokens.weight"].norm()
        for decay in ("0", "5")
    ]

    assert sizes[1] < sizes[0]


def test_training_ends_where_the_validation_loss_rises_and_the_best_step_is_the_result(
    model_dir: Path, chats: Path, tmp_path: Path
) -> None:
    settings = (*SETTINGS["early stop"], "finetune.epochs=20", "finetune.checkpoint_every=1")
    out = trained(model_dir, chats, tmp_path / "stopped", *settings)

    measured = [line for line in lines_of(out) if "validation_loss" in line]
    best = min(measured, key=lambda line: line["validation_loss"])
    training = json.loads((out / "training.json").read_text())
    assert training["steps"] == best["step"]
    assert training["validation_loss"] == best["validation_loss"]
    assert measured[-1]["step"] == best["step"] + 2
    expected = tmp_path / f"stopped/trainer/checkpoint-{best['step']}/adapter_model.safetensors"
    assert (out / "adapter_model.safetensors").read_bytes() == expected.read_bytes()


def test_without_patience_all_steps_are_trained_and_the_last_is_the_result(
    model_dir: Path, chats: Path, tmp_path: Path
) -> None:
    out = trained(model_dir, chats, tmp_path / "work", *VALIDATED, "finetune.lr=0.1")

    training = json.loads((out / "training.json").read_text())
    assert training["steps"] == lines_of(out)[-1]["step"]
    assert training["validation_loss"] == lines_of(out)[-1]["validation_loss"]


HISTORY = [{"step": step, "eval_loss": loss} for step, loss in enumerate([3.0, 2.0, 2.5, 2.0, 2.1], start=1)]


@pytest.mark.parametrize(("patience", "over"), [(None, False), (4, False), (3, True), (1, True)])
def test_training_is_over_after_patience_without_a_lower_loss(patience: int | None, *, over: bool) -> None:
    assert best_step(HISTORY) == 2
    assert is_over(HISTORY, patience) == over
    assert not is_over(HISTORY[:2], patience)
    assert not is_over([{"step": 1, "loss": 3.0}], patience)


@pytest.mark.parametrize("name", ["early stop", "all weights", *map(slow, RESUMED)])
def test_a_killed_run_resumes_to_the_curve_and_the_weights_of_one_that_was_not(
    model_dir: Path, chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings = (*SETTINGS[name], "finetune.epochs=3")
    whole = trained(model_dir, chats, tmp_path / "whole", *settings)
    on_save = TrainingCallback.on_save

    def killed(self: TrainingCallback, args: Any, state: Any, control: Any, **_: object) -> None:
        on_save(self, args, state, control)
        if state.global_step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingCallback, "on_save", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(model_dir, chats, tmp_path / "killed", *settings)
    shutil.rmtree(tmp_path / "killed/out")
    resumed = trained(model_dir, chats, tmp_path / "killed", *settings)

    assert (resumed / "training.jsonl").read_bytes() == (whole / "training.jsonl").read_bytes()
    weights = "merged/model.safetensors"
    assert (resumed / weights).read_bytes() == (whole / weights).read_bytes()


def test_a_run_that_stopped_early_is_not_trained_again(
    model_dir: Path, chats: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = (*SETTINGS["early stop"], "finetune.epochs=20", "finetune.checkpoint_every=1")
    first = trained(model_dir, chats, tmp_path / "work", *settings)
    kept = {path.relative_to(first): path.read_bytes() for path in first.rglob("*") if path.is_file()}
    shutil.rmtree(first)
    caplog.clear()

    again = trained(model_dir, chats, tmp_path / "work", *settings)

    assert {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()} == kept


def test_a_run_whose_best_checkpoint_is_damaged_starts_before_it(
    model_dir: Path, chats: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = (*SETTINGS["early stop"], "finetune.epochs=20", "finetune.checkpoint_every=1")
    first = trained(model_dir, chats, tmp_path / "work", *settings)
    expected = (first / "merged/model.safetensors").read_bytes()
    best = json.loads((first / "training.json").read_text())["steps"]
    (tmp_path / f"work/trainer/checkpoint-{best}/optimizer.pt").write_bytes(b"damaged")
    shutil.rmtree(first)

    again = trained(model_dir, chats, tmp_path / "work", *settings)

    assert f"checkpoint-{best}, which has the lowest validation loss: " in caplog.text
    assert (again / "merged/model.safetensors").read_bytes() == expected


UNPATCHED = """
import json, sys
from pathlib import Path
from transformers.models.llama import modeling_llama

before = {name: vars(modeling_llama)[name] for name in ("LlamaRMSNorm", "LlamaMLP", "apply_rotary_pos_emb")}
forward = modeling_llama.LlamaForCausalLM.forward
from tests.finetune.test_run import run_in
work, model, chats = map(Path, sys.argv[1:])
run_in(work, model, chats, work / "out")
assert before == {name: vars(modeling_llama)[name] for name in before}
assert modeling_llama.LlamaForCausalLM.forward is forward
assert "liger_kernel" not in sys.modules
"""


@pytest.mark.slow
def test_training_leaves_the_classes_of_transformers_as_they_are(
    model_dir: Path, chats: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", UNPATCHED, str(tmp_path), str(model_dir), str(chats)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr


def lines_of(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "training.jsonl").read_text().splitlines()]


def curve(out: Path, name: str) -> list[float]:
    return [line[name] for line in lines_of(out)]


assert "finetune.checkpoint_every=2" in SMALL  # which the tests of resuming count on
