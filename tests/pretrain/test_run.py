import contextlib
import io
import json
import math
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import anadil
from anadil.core import log as logs
from anadil.core import progress
from anadil.core.errors import RecipeError, Stopped
from anadil.launch.kubernetes.pod_log import step_in_line
from anadil.model.architecture import empty_model
from anadil.model.load import load_model, load_tokenizer
from anadil.pretrain import prepare
from anadil.pretrain.parallel import parallelize
from anadil.pretrain.run import run
from anadil.recipe.pretrain import Phase, Pretrain
from anadil.runtime.lookup import log_figures
from anadil.runtime.metric_table import METRICS, MetricSpec, complete, values_for
from tests.kit.marks import matrix
from tests.kit.pretraining import (
    SHORT,
    SignalAt,
    generations,
    losses,
    make_corpus,
    make_job,
    make_model,
    make_recipe,
    run_in_child,
)
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.ranks import Fork, in_forks, run_module, run_script


def test_a_run_writes_a_model_that_loads_a_journal_and_a_summary_the_same_each_time(
    tmp_path: Path, base: Path, whole: Path
) -> None:
    job = make_job(tmp_path, make_recipe(base))

    figures = run(job)

    assert losses(job.out) == losses(whole)
    assert (job.out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert losses(job.out).keys() == set(range(1, 13))
    assert losses(job.out)[12] < losses(job.out)[1]
    assert figures["steps"] == 12
    assert figures["loss"] == losses(job.out)[12]
    assert figures["parameters"] == sum(p.numel() for p in load_model(job.out).parameters())
    assert len(load_tokenizer(job.out)) == 300
    summary = json.loads((job.out / "training.json").read_text())
    assert [phase["trainable_parameters"] for phase in summary["phases"]] == [9600, figures["parameters"]]
    assert summary["device"] == "cpu"
    assert summary["precision"] == "fp32"
    assert 0 <= summary["packing_waste"] < 0.5
    assert "peak_memory_bytes" not in (job.out / "training.json").read_text()  # of a CPU
    assert "peak_memory_bytes" not in (job.out / "training.jsonl").read_text()


def test_another_seed_gives_another_order(tmp_path: Path, base: Path, whole: Path) -> None:
    recipe = make_recipe(base, phases=SHORT[:1])

    run(make_job(tmp_path, recipe.model_copy(update={"seed": 8}), "b"))

    assert losses(whole)[1] != losses(tmp_path / "b/out")[1]


def test_accumulation_does_not_change_the_losses(tmp_path: Path, base: Path, whole: Path) -> None:
    run(make_job(tmp_path, make_recipe(base, micro_batch_size=1)))

    assert losses(tmp_path / "a/out") == pytest.approx(losses(whole), rel=1e-5)


def test_the_first_phase_changes_embeddings_and_no_bit_of_the_backbone(tmp_path: Path, untied: Path) -> None:
    job = make_job(tmp_path, make_recipe(untied, phases=SHORT[:1]))

    run(job)

    before = load_file(untied / "model.safetensors")
    after = load_file(job.out / "model.safetensors")
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {"model.embed_tokens.weight", "lm_head.weight"}


@pytest.mark.parametrize("step", [matrix(2), 4])  # in the first phase, at its border
def test_sigterm_saves_and_the_resumed_curve_is_that_of_an_uninterrupted_run(
    tmp_path: Path, base: Path, whole: Path, step: int
) -> None:
    recipe = make_recipe(base, checkpoint_every=100)

    code = run_in_child(make_job(tmp_path, recipe, tracker=SignalAt(step, signal.SIGTERM)))
    saved = {path.name for path in generations(make_job(tmp_path, recipe))}
    run(make_job(tmp_path, recipe))

    assert code == Stopped.exit_code
    assert f"step-{step + 1:08}" in saved  # the signal arrived after the step was done
    assert losses(tmp_path / "a/out") == losses(whole)
    weights = [(out / "model.safetensors").read_bytes() for out in (tmp_path / "a/out", whole)]
    assert weights[0] == weights[1]


def test_after_sigkill_the_run_goes_on_from_the_last_checkpoint(
    tmp_path: Path, base: Path, whole: Path
) -> None:
    recipe = make_recipe(base)
    saved = tmp_path / "a/work/checkpoints/step-00000006"
    code = run_in_child(make_job(tmp_path, recipe, tracker=SignalAt(8, signal.SIGKILL, saved)))
    newest = generations(make_job(tmp_path, recipe))[0].name
    run(make_job(tmp_path, recipe))

    assert code == -signal.SIGKILL
    assert newest == "step-00000006"
    assert losses(tmp_path / "a/out") == losses(whole)


def test_a_checkpoint_of_other_settings_or_another_base_is_refused_with_the_difference(
    tmp_path: Path, base: Path
) -> None:
    run(make_job(tmp_path, make_recipe(base, phases=SHORT)))

    for changes, difference in (
        ({"weight_decay": 0.0}, r"weight_decay 0.1 -> 0.0.*remove"),
        ({"state": "bf16"}, r'pretrain.state "fp32" -> "bf16"'),
    ):
        with pytest.raises(RecipeError, match=difference):
            run(make_job(tmp_path, make_recipe(base, phases=SHORT, **changes)))
    job = make_job(tmp_path, make_recipe(base, phases=SHORT))
    with pytest.raises(RecipeError, match=r"input tokens"):
        run(
            replace(
                job, inputs={**job.inputs, "corpus": make_corpus(tmp_path / "other", PRETRAINING_TEXTS[1:])}
            )
        )
    make_model(base, seed=2)
    with pytest.raises(RecipeError, match=r"base files"):
        run(make_job(tmp_path, make_recipe(base, phases=SHORT)))


def test_a_resume_may_change_what_leaves_the_losses_alone_and_does_not_encode_the_corpus_again(
    tmp_path: Path, base: Path, whole: Path
) -> None:
    code = run_in_child(make_job(tmp_path, make_recipe(base), tracker=SignalAt(6, signal.SIGTERM)))
    stream = next((tmp_path / "a/work").glob("shards-*/*/shard.safetensors"))
    encoded = stream.stat().st_mtime_ns
    job = make_job(tmp_path, make_recipe(base, checkpoint_every=2, keep_checkpoints=2))

    run(job)

    assert code == Stopped.exit_code
    assert stream.stat().st_mtime_ns == encoded
    assert losses(job.out) == losses(whole)
    assert [path.name for path in generations(job)] == ["step-00000012", "step-00000010"]


def test_bf16_on_a_cpu_reports_the_loss_in_full_precision(
    tmp_path: Path, base: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallelize, "has_fast_bf16", lambda _device: True)
    job = make_job(tmp_path, make_recipe(base, precision="bf16", phases=SHORT))

    run(job)

    first = losses(job.out)[1]
    assert first == pytest.approx(losses(whole)[1], rel=1e-3)
    assert torch.tensor(first).bfloat16().item() != first
    assert load_model(job.out, torch.bfloat16).dtype == torch.bfloat16


def test_a_cpu_without_bf16_products_computes_in_fp32_and_says_so(
    tmp_path: Path, base: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (parallelize, prepare):
        monkeypatch.setattr(module, "has_fast_bf16", lambda _device: False)
    job = make_job(tmp_path, make_recipe(base, precision="bf16"))

    with caplog.at_level("WARNING"):
        run(job)

    assert losses(job.out) == losses(whole)
    assert "this CPU has no BF16 products of its own: they are computed in FP32" in caplog.text
    assert json.loads((job.out / "training.json").read_text())["precision"] == "fp32"


def test_a_vocabulary_may_end_before_the_base_models_padding_token(base: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "pad_token_id": 299}))

    model = empty_model(base, num_tokens=100)

    assert model.get_input_embeddings().weight.shape[0] == 100


def test_a_loss_that_is_no_number_stops_the_run_and_names_step_and_rate(tmp_path: Path, base: Path) -> None:
    phases = [{"trains": "embeddings", "steps": 2, "lr": 0.01}, {"trains": "all", "steps": 9, "lr": 1e36}]
    job = make_job(tmp_path, make_recipe(base, phases=phases))

    with pytest.raises(RecipeError, match=r"is nan at step 4 .*learning rate 1e\+36.*lower"):
        run(job)

    assert generations(job)[-1].name == "step-00000002"
    assert losses(job.work).keys() == {1, 2, 3}


def test_a_corpus_shorter_than_a_sequence_still_trains(tmp_path: Path, base: Path) -> None:
    make_corpus(tmp_path / "short", ["Salam."])
    job = make_job(tmp_path, make_recipe(base, phases=SHORT))
    job.inputs["corpus"] = tmp_path / "short"

    run(job)

    assert all(math.isfinite(loss) for loss in losses(job.out).values())


@pytest.mark.parametrize("steps", [9, matrix(12)])  # in the middle, and all of them
def test_a_run_that_goes_on_from_the_archive_alone_has_every_line_of_its_journal(
    tmp_path: Path, base: Path, whole: Path, steps: int
) -> None:
    recipe = make_recipe(base, copies={"archive": str(tmp_path / "archive")})
    first = make_job(tmp_path, recipe, tracker=SignalAt(steps - 1, signal.SIGTERM))
    run_in_child(first)
    second = make_job(tmp_path, recipe, "elsewhere")

    figures = run(second)

    assert generations(first)[0].name == f"step-{steps:08}"
    assert losses(second.out) == losses(whole)
    assert figures["steps"] == 12


SOMETIMES = {
    "mfu", "peak_memory_bytes", "straggler_ratio", "cost_usd", "validation_bits_per_byte", "rows_unseen", "expert_load_max", "experts_idle",
    "kl", "teacher_weight",
}  # fmt: skip
"""On a GPU, in several processes, where there is a price, a held-out part, a mixture of experts, or a base as teacher."""


def test_a_run_s_log_tells_the_launcher_of_each_step(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    job = make_job(tmp_path, make_recipe(base))
    with contextlib.redirect_stderr(io.StringIO()) as written:
        logs.set_up("pretrain", container=True)
        log_figures(run(job))
    lines = written.getvalue().splitlines()

    assert len([line for line in lines if '"msg": "pre-training: ' in line]) == 12
    told = [line for line in lines if '"msg": "step=' in line]
    assert len(told) == 12
    assert all(f" {name}=" in line for line in told for name in ("tokens_per_s", "data_wait_s", "goodput"))
    # Each step is told twice: as progress, and with its figures.
    assert [step for line in lines if (step := step_in_line(line))] == [
        n for n in range(1, 13) for _ in range(2)
    ]
    written = json.loads((job.out / "training.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert [*written] == [
        each.name
        for each in METRICS
        if "jsonl" in each.sinks
        and "pretrain" in (each.stages or "pretrain")
        and each.name not in SOMETIMES
        and "/" not in each.name
    ]


def test_a_metric_without_a_row_is_refused_and_one_that_follows_from_others_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    derived = replace(
        MetricSpec(name="half", doc="Half of the loss", value=lambda line: line["loss"] / 2), sinks=("log",)
    )
    monkeypatch.setattr("anadil.runtime.metric_table.METRICS", (*METRICS, derived))
    monkeypatch.setattr(
        "anadil.runtime.metric_table.BY_NAME", {each.name: each for each in (*METRICS, derived)}
    )

    line = complete({"loss": 3.0, "step": 1})

    assert line == {"step": 1, "loss": 3.0, "half": 1.5}
    assert values_for("log", line) == line
    assert values_for("jsonl", line) == {"step": 1, "loss": 3.0}
    assert complete({"step": 0}) == {"step": 0}  # of the base
    with pytest.raises(AssertionError, match="without a row in the table: \\['colour'\\]"):
        complete({"colour": 1.0})


def test_a_sequence_beyond_the_base_models_positions_and_too_large_a_batch_are_said(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = make_recipe(base, sequence_length=300, phases=[{"trains": "all", "steps": 1, "lr": 1e-3}])

    run(make_job(tmp_path, recipe))

    assert "sequence_length: 300 tokens, but base.model was made for at most 256" in caplog.text
    assert f"batch_size: {recipe.pretrain.batch_size} sequences, and the corpus has only " in caplog.text


PHASES = (Phase(trains="embeddings", steps=5_000, lr=1.0), Phase(trains="all", steps=15_000, lr=2.0))


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [(80, [5, 15]), (8_000, [500, 1_500]), (80_000, [5_000, 15_000]), (10**9, [5_000, 15_000]), (0.5, [1])],
)
def test_a_text_gets_its_epochs_and_a_large_one_the_steps_of_the_phases(
    sequences: float, expected: list[int]
) -> None:
    settings = Pretrain(phases=PHASES, batch_size=16, max_epochs=4)

    assert [phase.steps for phase in settings.within_epochs(sequences).phases] == expected
    unlimited = Pretrain(phases=PHASES, batch_size=16)
    assert unlimited.within_epochs(sequences) is unlimited


def test_a_run_ends_after_its_epochs_as_one_that_names_the_steps(tmp_path: Path, base: Path) -> None:
    phases = [
        {"trains": "embeddings", "steps": 100, "lr": 0.01},
        {"trains": "all", "steps": 300, "lr": 0.005},
    ]
    job = make_job(tmp_path, make_recipe(base, phases=phases, max_epochs=2))
    figures = run(job)
    summary = json.loads((job.out / "training.json").read_text(encoding="utf-8"))
    steps = [phase["steps"] for phase in summary["phases"]]
    named = [{**phase, "steps": number} for phase, number in zip(phases, steps, strict=True)]
    run(make_job(tmp_path, make_recipe(base, phases=named), "b"))

    assert summary["epochs"] == pytest.approx(2, abs=0.5)
    assert sum(steps) == figures["steps"] == max(losses(job.out)) < 400
    assert losses(job.out) == losses(tmp_path / "b/out")


PACKAGE = Path(anadil.__file__).parent
EDITED = (
    "core/errors.py",
    "artifacts/storage.py",
    "text/corpus.py",
    "pretrain/run.py",
    "pretrain/loop.py",
    "model/load.py",
)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A copy of the program with a comment more in shared modules and the stage's own, and another version."""
    copy = tmp_path / "release" / "anadil"
    shutil.copytree(PACKAGE, copy)
    for name in EDITED:
        file = copy / name
        file.write_text(
            file.read_text(encoding="utf-8") + "# A comment that changes nothing.\n", encoding="utf-8"
        )
    version = copy / "__init__.py"
    version.write_text(re.sub(r'__version__ = ".*"', '__version__ = "99.0.0"', version.read_text()))
    return copy.parent


@pytest.mark.matrix
@pytest.mark.usefixtures("base")
def test_after_a_release_an_unfinished_model_is_gone_on_with_and_a_finished_one_reused(
    release: Path, base: Path, tmp_path: Path
) -> None:
    recipe = make_recipe(base, checkpoint_every=2)

    stopped = pretrain(tmp_path, recipe.model_dump_json(), "pretrain.faults.budget_hours=1e-9")
    resumed = pretrain(tmp_path, recipe.model_dump_json(), program=release)
    reused = pretrain(tmp_path, recipe.model_dump_json())

    assert stopped.returncode == 7, stopped.stderr
    assert resumed.returncode == reused.returncode == 0, resumed.stderr
    assert "step=1 " in stopped.stderr
    assert "step=1 " not in resumed.stderr
    assert "step=2 " in resumed.stderr
    (model,) = (tmp_path / "root" / "model").iterdir()
    assert '"version": "99.0.0"' in (model / "manifest.json").read_text(encoding="utf-8")
    assert f"reused {model}" in reused.stderr


def pretrain(
    folder: Path, recipe: str, *overrides: str, program: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """One start of the stage, in a process of its own, by this program or a copy of it."""
    settings = [f"storage.root={folder}/root", "tracking.uri=off", *overrides]
    words = [
        *("--recipe", recipe, "--corpus", str(folder / "corpus"), "--tokenizer", str(folder / "tokenizer")),
        *(word for text in settings for word in ("--set", text)),
    ]
    if program is None:
        log = folder / "0.log"
        log.unlink(missing_ok=True)
        [code] = in_forks([partial(run_module, "anadil.pretrain", *words)], folder)
        return subprocess.CompletedProcess(words, code, stderr=log.read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "anadil.pretrain", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, cwd=folder,
        env=os.environ | {"PYTHONPATH": str(program)},
    )  # fmt: skip


COMPARE = Path(__file__).parents[2] / "benchmarks/train/compare.py"
SMALL = {
    "vocabulary": 2_000,
    "hidden": 32,
    "intermediate": 64,
    "layers": 2,
    "batch": 4,
    "length": 64,
    "warmup": 2,
    "steps": 8,
    "repeat": 1,
}
ROUNDING = 1e-5
"""Of a loss after 10 steps in FP32, as a share of it."""


@pytest.mark.slow
def test_each_trainer_has_a_row_and_losses_are_those_of_the_trainer_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forked(command: list[str], *, env: dict[str, str], **_: object) -> "subprocess.CompletedProcess[str]":
        """A trainer in a process of its own that need not import torch again."""
        script, *words = command[1:]
        log = tmp_path / words[0]
        code = Fork(partial(run_script, Path(script), *words), log, env).wait()
        return subprocess.CompletedProcess(command, code, *[log.read_text(encoding="utf-8")] * 2)

    sizes = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(subprocess, "run", forked)
    monkeypatch.setattr(sys, "argv", [str(COMPARE), *sizes])
    monkeypatch.syspath_prepend(COMPARE.parent)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(COMPARE), run_name="__main__")
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]

    assert ended.value.code == 0, "no trainer is left out"
    assert [row[0] for row in rows] == ["trainer", "---", "anadil", "transformers", "trl"]
    assert rows[0][-1] == "loss differs"
    # The largest difference of all steps, as a share; curves of different lengths are an error.
    assert all(float(row[-1]) <= ROUNDING for row in rows[2:])
