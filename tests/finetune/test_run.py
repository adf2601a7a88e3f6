"""The stage as a user starts it: adapter, merged model, and a run that is stopped and goes on."""

import json
import logging
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from anadil.artifacts import artifact
from anadil.artifacts.base_model import CHAT_TEMPLATE as TEMPLATE
from anadil.core.errors import DataError, PreflightError, RecipeError
from anadil.core.stages import STAGES
from anadil.finetune.run import run
from anadil.finetune.training import TrainingCallback
from anadil.model.load import load_model
from anadil.recipe.load import load_recipe
from anadil.runtime.entry_point import main
from anadil.runtime.execute import execute
from anadil.runtime.job import Job
from anadil.runtime.termination import exit_code_of
from tests.kit.rows import write_rows

FOREIGN_WARNINGS = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::pydantic.warnings.PydanticDeprecationWarning",
)
"""Warnings of the libraries that train."""
pytestmark = FOREIGN_WARNINGS

ANSWERS = [
    ("Azərbaycanın paytaxtı hansı şəhərdir?", "Azərbaycanın paytaxtı Bakı şəhəridir."),
    ("Nizami Gəncəvi kimdir?", "Nizami Gəncəvi Azərbaycan ədəbiyyatının ən böyük şairidir."),
    ("Balansımı necə yoxlaya bilərəm?", "Balansınızı öyrənmək üçün zəng düyməsini basın."),
    ("Salam!", "Salam! Necə kömək edə bilərəm?"),
]
SMALL = [
    "finetune.trains=adapter", "finetune.rank=16", "finetune.batch_size=2", "finetune.epochs=2", "finetune.lr=0.01",
    "finetune.max_length=256", "finetune.checkpoint_every=2", "finetune.mix={}",
]  # fmt: skip
STEPS = 30
LEARNING = (
    f"finetune.epochs={STEPS}", "finetune.batch_size=4", "finetune.lr=0.02", "finetune.checkpoint_every=50",
)  # fmt: skip
ONE_STEP = "finetune.epochs=0.5"
URI = "s3://bucket/model/1"


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"prompt": prompt, "response": response} for prompt, response in ANSWERS]
    return write_rows(tmp_path_factory.mktemp("chats") / "chats.jsonl", rows)


def finetune(model: Path, chats: Path, out: Path, *overrides: str) -> Path:
    recipe = load_recipe("smoke", [*SMALL, *overrides])
    execute(STAGES["finetune"], recipe, {"model": str(model)}, [str(chats)], str(out))
    return out


@pytest.fixture(scope="module")
def adapter(model_dir: Path, chats: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of a run that learns its answers by heart."""
    return finetune(model_dir, chats, tmp_path_factory.mktemp("whole") / "adapter", *LEARNING)


def run_in(work: Path, model: Path, chats: Path, out: Path, *overrides: str) -> Path:
    """The stage without its entry, which would remove the work directory at the end."""
    out.mkdir()
    job = Job(
        recipe=load_recipe("smoke", [*SMALL, *overrides]), inputs={"model": model}, uris={"model": URI},
        files=(str(chats),), out=out, work=work, base_cache=work,
    )  # fmt: skip
    run(job)
    return out


@pytest.fixture(scope="module")
def whole(model_dir: Path, chats: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work directory of a run of four steps that nothing interrupted; `out` is what it made."""
    work = tmp_path_factory.mktemp("work")
    run_in(work, model_dir, chats, work / "out")
    return work


@pytest.fixture
def work(whole: Path, tmp_path: Path) -> Path:
    """A copy of that directory."""
    return shutil.copytree(whole, tmp_path / "work")


def test_the_merged_model_answers_as_base_and_adapter_do(model_dir: Path, adapter: Path) -> None:
    tokens = torch.arange(40).reshape(2, 20)
    with_adapter = PeftModel.from_pretrained(load_model(model_dir), adapter)
    merged = load_model(adapter / "merged")

    with torch.no_grad():
        expected = with_adapter.eval()(tokens).logits
        actual = merged(tokens).logits
        untrained = load_model(model_dir)(tokens).logits

    scale = expected.abs().max()
    assert (actual - expected).abs().max() < 1e-5 * scale
    assert (actual - untrained).abs().max() > 1e-2 * scale


def test_the_merged_model_is_served_with_the_template_it_was_trained_on(adapter: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(adapter / "merged")
    model = AutoModelForCausalLM.from_pretrained(adapter / "merged")
    ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|end_of_text|>", "<|eot_id|>")]

    assert tokenizer.chat_template == TEMPLATE.read_text(encoding="utf-8")
    assert model.generation_config.eos_token_id == ends


def test_the_model_learns_to_answer_and_to_stop(adapter: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(adapter / "merged")
    model = AutoModelForCausalLM.from_pretrained(adapter / "merged")
    prompt, answer = ANSWERS[0]
    question = [{"role": "user", "content": prompt}]
    asked = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )

    generated = model.generate(**asked, do_sample=False, max_new_tokens=100)

    assert tokenizer.decode(generated[0, asked["input_ids"].shape[1] :]) == f"{answer}<|eot_id|>"


def test_the_artifact_holds_no_pickle_and_one_path_which_is_that_of_its_base(
    adapter: Path, model_dir: Path
) -> None:
    files = sorted(file.relative_to(adapter).as_posix() for file in adapter.rglob("*") if file.is_file())
    texts = {name: (adapter / name).read_text() for name in files if not name.endswith(".safetensors")}
    manifest, base = artifact.read_manifest(str(adapter)), artifact.read_manifest(str(model_dir))

    assert files == [
        "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja",
        "heldout_chats.jsonl", "manifest.json", "mask_audit.json", "merged/MLmodel", "merged/chat_template.jinja",
        "merged/components/tokenizer/chat_template.jinja", "merged/components/tokenizer/tokenizer.json",
        "merged/components/tokenizer/tokenizer_config.json", "merged/config.json", "merged/generation_config.json",
        "merged/model.safetensors", "merged/python_env.yaml", "merged/requirements.txt",
        "merged/tokenizer.json", "merged/tokenizer_config.json",
        "seen_chats.jsonl", "tokenizer.json", "tokenizer_config.json", "training.json", "training.jsonl",
    ]  # fmt: skip
    settings = json.loads(texts.pop("adapter_config.json"))
    assert manifest is not None
    assert base is not None
    assert manifest.origin["input model"] == base.digest
    assert settings["base_model_name_or_path"] == str(model_dir)
    assert (settings["r"], settings["lora_alpha"], settings["use_rslora"]) == (16, 28, False)
    assert not [name for name, text in texts.items() if str(model_dir.parent) in text]


LOAD = """
import sys, torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

adapter = sys.argv[1]
tokens = torch.arange(40).reshape(2, 20)
with torch.no_grad():
    actual = AutoPeftModelForCausalLM.from_pretrained(adapter, local_files_only=True).eval()(tokens).logits
    expected = AutoModelForCausalLM.from_pretrained(adapter + "/merged", local_files_only=True)(tokens).logits
assert (actual - expected).abs().max() < 1e-5 * expected.abs().max()
tokenizer = AutoTokenizer.from_pretrained(adapter, local_files_only=True)
print(tokenizer.apply_chat_template([{"role": "user", "content": "Salam"}], tokenize=False))
"""


@pytest.mark.slow
def test_the_adapter_loads_by_itself_from_another_directory(adapter: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", LOAD, str(adapter)]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<|begin_of_text|><|start_header_id|>user")


def test_a_relative_model_is_named_by_its_absolute_path_and_the_place_is_no_content(
    model_dir: Path, chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model_dir, tmp_path / "copy")
    monkeypatch.chdir(tmp_path)

    finetune(model_dir, chats, tmp_path / "other", ONE_STEP)
    finetune(Path("copy"), chats, Path("adapter"), ONE_STEP)

    settings = json.loads(Path("adapter/adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(tmp_path / "copy")
    mine, other = artifact.read_manifest("adapter"), artifact.read_manifest("other")
    assert mine is not None
    assert other is not None
    assert mine.files["adapter_config.json"] != other.files["adapter_config.json"]
    assert (mine.key, mine.digest) == (other.key, other.digest)


def test_the_figures_and_counts_are_those_of_the_audit(adapter: Path, whole: Path) -> None:
    manifest = artifact.read_manifest(str(adapter))
    audited = json.loads((adapter / "mask_audit.json").read_text())

    assert manifest is not None
    assert manifest.records == {"rows": 4, "kept": 4, "dropped": 0}
    assert (manifest.figures["examples"], manifest.figures["steps"]) == (4, STEPS)
    assert manifest.figures["trained_tokens"] == audited["trained_tokens"]
    # An adapter of a model on S3 names the URI, not the local copy.
    assert json.loads((whole / "out/adapter_config.json").read_text())["base_model_name_or_path"] == URI


def test_the_loss_of_each_source_is_logged(model_dir: Path, chats: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Sual {each}?", "response": f"{each * 7919} cavabdır."} for each in range(4)]
    other = write_rows(tmp_path / "other.jsonl", rows)
    recipe = load_recipe("smoke", SMALL)
    execute(
        STAGES["finetune"], recipe, {"model": str(model_dir)}, [str(chats), str(other)], str(tmp_path / "out")
    )

    curve = [json.loads(line) for line in (tmp_path / "out/training.jsonl").read_text().splitlines()]
    for line in curve:
        losses = [value for name, value in line.items() if name.startswith("loss/")]
        assert losses
        assert min(losses) - 1e-4 <= line["loss"] <= max(losses) + 1e-4
    assert {name for line in curve for name in line if name.startswith("loss/")} == {
        "loss/chats",
        "loss/other",
    }


def test_a_run_stopped_by_sigterm_goes_on_to_the_same_curve(
    model_dir: Path, chats: Path, whole: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    on_save = TrainingCallback.on_save

    def stopped(self: TrainingCallback, args: Any, state: Any, control: Any, **_: object) -> None:
        on_save(self, args, state, control)
        if state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)

    out = tmp_path / "adapter"
    settings = [word for override in SMALL for word in ("--set", override)]
    with monkeypatch.context() as patch:
        patch.setattr(TrainingCallback, "on_save", stopped)
        code = main(
            "finetune", ["--model", str(model_dir), "--chats", str(chats), *settings, "--out", str(out)]
        )
    checkpoints = {path.name for path in Path(f"{out}.work/trainer").glob("checkpoint-*")}

    finetune(model_dir, chats, out)

    assert code == 143
    assert capsys.readouterr().out == ""
    assert checkpoints == {"checkpoint-2", "checkpoint-3"}
    for file in ("training.jsonl", "adapter_model.safetensors"):
        assert (out / file).read_bytes() == (whole / "out" / file).read_bytes()


def test_damaged_and_incomplete_checkpoints_are_passed_over(
    model_dir: Path, chats: Path, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = work / "trainer"
    (trainer / "checkpoint-4" / "optimizer.pt").write_bytes(b"not what the manifest names")
    shutil.copytree(trainer / "checkpoint-2", trainer / "checkpoint-3")
    (trainer / "checkpoint-3" / "manifest.json").unlink()

    with caplog.at_level(logging.INFO):
        again = run_in(work, model_dir, chats, work / "again")

    assert "checkpoint-4: not used (checkpoint-4/optimizer.pt: differs from its manifest" in caplog.text
    assert "checkpoint-3: not used (incomplete" in caplog.text
    assert "resuming after step 2 of 4" in caplog.text
    assert (again / "training.jsonl").read_text() == (work / "out/training.jsonl").read_text()


def test_a_run_that_died_in_the_merge_is_not_trained_again(
    model_dir: Path, chats: Path, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        again = run_in(work, model_dir, chats, work / "again")

    assert "resuming after step 4 of 4" in caplog.text
    files = {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()}
    assert Path("merged/model.safetensors") in files
    assert files == {name: (work / "out" / name).read_bytes() for name in files}


def test_a_checkpoint_of_another_run_is_not_gone_on_with(
    model_dir: Path, chats: Path, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        run_in(work, model_dir, chats, work / "again", "seed=7")

    assert "checkpoint-4: not used (of another run: recipe seed 0 -> 7)" in caplog.text
    assert "resuming" not in caplog.text


def test_a_loss_that_is_no_number_ends_the_run(model_dir: Path, chats: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"loss is (nan|inf) at step \d+; lower finetune\.lr \(1e\+30\)"):
        finetune(model_dir, chats, tmp_path / "adapter", "finetune.lr=1.0e+30")


@pytest.mark.parametrize(
    ("size", "words"),
    [("180k", "disk full, most likely: a file could not be written whole"), ("320k", "disk full: ")],
)
def test_a_full_disk_is_told_as_such(
    model_dir: Path, chats: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, size: str, words: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        assert exit_code_of(lambda: bool(finetune(model_dir, chats, disk / "adapter"))) == 4, caplog.text
    finally:
        subprocess.run(["umount", str(disk)], check=True)

    assert words in caplog.text
    assert "free space, or choose another --out or storage.root" in caplog.text


def test_no_trainable_row_is_a_data_error_with_reasons(model_dir: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "Salam!"}]},
        {"prompt": "Salam!", "response": "Salam! " * 300},
    ]
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")

    with pytest.raises(DataError) as raised:
        finetune(model_dir, write_rows(tmp_path / "chats.jsonl", rows), tmp_path / "adapter")
    with pytest.raises(DataError, match=r"chats: .*empty\.jsonl hold no rows; a row needs `messages`, "):
        finetune(model_dir, empty, tmp_path / "adapter")

    assert str(raised.value) == (
        "chats: none of 2 rows can be trained on: no_answer 1 (a chat needs an assistant turn, from which the "
        "model learns; chats.jsonl:1); too_long 1 (shorten the chats or raise finetune.max_length, "
        "which ends at the model's context; chats.jsonl:2)"
    )


def test_many_dropped_rows_and_a_length_over_the_models_context_are_told(
    model_dir: Path, chats: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "mixed.jsonl"
    file.write_text(chats.read_text(encoding="utf-8") + '{"prompt": "Salam!"}\n', encoding="utf-8")

    finetune(model_dir, file, tmp_path / "adapter", ONE_STEP, "finetune.max_length=512")

    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    text = (
        "1 of 5 chats skipped: no_chat 1 (a row needs `messages`, `conversations`, or a question and its answer, "
        "such as `prompt` and `response`; finetune.columns names columns of other names, such as {question: Q, answer: A}; "
        "mixed.jsonl:5 ('prompt'))"
    )
    assert text in warned
    assert "finetune.max_length: 512 is more than the model's context; 256 is used" in warned


def test_a_mixture_of_experts_is_refused_by_name_before_chats_are_read(chats: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": "phimoe", "num_local_experts": 32}))

    with pytest.raises(PreflightError, match=r"model: model type 'phimoe' is a mixture of experts"):
        run_in(tmp_path, tmp_path / "model", chats, tmp_path / "out")
