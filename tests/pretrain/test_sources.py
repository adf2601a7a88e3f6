"""Training on three sources: one run whatever kills it, losses and scores of each source."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.core.errors import BudgetReached, RecipeError, Stopped
from anadil.core.stages import STAGES
from anadil.pretrain.run import run
from anadil.recipe.sections import Recipe, Storage
from anadil.runtime.execute import execute
from anadil.runtime.planned_artifact import MadeArtifact
from tests.kit.marks import matrix, slow
from tests.kit.pretraining import SignalAt, run_in_child, run_in_several
from tests.kit.sources import PHASES, TEXTS, make_sources_job, make_sources_recipe


@pytest.fixture(scope="module")
def unbroken(inputs: Path, corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Result of one process for the model with two tables."""
    folder = tmp_path_factory.mktemp("unbroken")
    for each in (*corpora.iterdir(), inputs / "tokenizer"):
        (folder / each.name).symlink_to(each)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run(
        job := make_sources_job(
            folder, make_sources_recipe(inputs / "untied", log_every=5, micro_batch_size=1)
        )
    )
    torch.set_num_threads(threads)
    return job.out


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "training.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines() if json.loads(line)["step"]]


def of_sources(folder: Path) -> list[dict[str, Any]]:
    """Figures of each line that belong to a source or the loss."""
    return [
        {key: value for key, value in line.items() if key == "loss" or "/" in key} for line in lines(folder)
    ]


def test_a_line_has_loss_and_tokens_of_each_source_which_add_up(tmp_path: Path, mixed: Path) -> None:
    job = make_sources_job(tmp_path, make_sources_recipe(mixed))

    run(job)

    found = lines(job.out)
    assert len(found) == 12
    assert {key for key in found[3] if "/" in key} - {"validation_bits_per_byte/web"} >= {
        "loss/web",
        "tokens/web",
    }
    before = dict.fromkeys(TEXTS, 0)
    for line in found:
        assert line["tokens"] == sum(line[f"tokens/{name}"] for name in TEXTS)
        new = {name: line[f"tokens/{name}"] - before[name] for name in TEXTS}
        assert {name for name in TEXTS if f"loss/{name}" in line} == {
            name for name, num in new.items() if num
        }
        nats = sum(new[name] * line.get(f"loss/{name}", 0) for name in TEXTS)
        assert nats / sum(new.values()) == pytest.approx(line["loss"], rel=1e-5)
        before = {name: line[f"tokens/{name}"] for name in TEXTS}
    summary = json.loads((job.out / "training.json").read_text())["sources"]
    assert {name: each["tokens"] for name, each in summary.items()} == before


def test_the_loss_of_a_source_is_the_mean_since_the_line_before(
    tmp_path: Path, mixed: Path, unbroken: Path
) -> None:
    job = make_sources_job(tmp_path, make_sources_recipe(mixed, micro_batch_size=1))

    run(job)

    steps, line = lines(job.out), lines(unbroken)[3]
    assert line["step"] == 10
    for name in TEXTS:
        tokens = [steps[step][f"tokens/{name}"] - steps[step - 1][f"tokens/{name}"] for step in range(5, 10)]
        nats = [
            num * steps[step].get(f"loss/{name}", 0) for step, num in zip(range(5, 10), tokens, strict=True)
        ]
        assert line[f"loss/{name}"] == pytest.approx(sum(nats) / sum(tokens), rel=1e-9)


def test_the_held_out_part_of_each_source_is_scored_and_the_language_keeps_the_plain_name(
    tmp_path: Path, mixed: Path
) -> None:
    job = make_sources_job(tmp_path, make_sources_recipe(mixed, validate_every=6))

    run(job)

    text = (job.out / "training.jsonl").read_text()
    scored = [line for line in map(json.loads, text.splitlines()) if "validation_bits_per_byte" in line]
    assert [line["step"] for line in scored] == [0, 4, 6, 12]
    for line in scored:
        assert line["validation_bits_per_byte"] == line["validation_bits_per_byte/web"]
        assert {f"validation_bits_per_byte/{name}" for name in TEXTS} <= line.keys()
    assert scored[-1]["validation_bits_per_byte/en"] < scored[0]["validation_bits_per_byte/en"]


@pytest.mark.parametrize("step", [matrix(1), 5])  # logged ones: it is saved a step later, amid the next line
def test_a_killed_run_goes_on_to_the_same_bits_of_every_source(
    tmp_path: Path, mixed: Path, unbroken: Path, step: int
) -> None:
    recipe = make_sources_recipe(mixed, checkpoint_every=1, log_every=5, micro_batch_size=1)

    code = run_in_child(make_sources_job(tmp_path, recipe, tracker=SignalAt(step, signal.SIGTERM)))
    run(make_sources_job(tmp_path, recipe))

    assert code == Stopped.exit_code
    assert of_sources(tmp_path / "a/out") == of_sources(unbroken)


@pytest.mark.parametrize(
    ("degrees", "processes"),
    [
        matrix({}, 2),
        ({"shard": 2}, 2),
        matrix({"context": 2}, 2),
        matrix({"tensor": 2}, 2),
        slow({"pipeline": 2}, 2),
        matrix({}, 4),
    ],
)
def test_every_layout_has_the_losses_of_each_source(
    tmp_path: Path, mixed: Path, unbroken: Path, degrees: dict[str, int], processes: int
) -> None:
    recipe = make_sources_recipe(mixed, log_every=5, parallelism=degrees, micro_batch_size=1)
    job = make_sources_job(tmp_path, recipe)

    assert run_in_several(job, processes) == [0] * processes

    for line, expected in zip(of_sources(job.out), of_sources(unbroken), strict=True):
        assert line == pytest.approx(expected, rel=1e-5)


def test_batches_skipped_after_a_spike_do_not_move_the_decay_s_mix(
    tmp_path: Path, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = {**PHASES[1], "steps": 12, "mix": {"web": 1}, "anneal": {"en": 1, "code": 1}}
    recipe = make_sources_recipe(
        mixed, phases=[phase], schedule="wsd", decay_fraction=0.5, faults={"on_anomaly": "skip"}
    )
    monkeypatch.setenv("ANADIL_INJECT", json.dumps({"nan": {"step": 5}}))

    assert run_in_child(make_sources_job(tmp_path, recipe)) == 0

    # Back to step 3: batches 4 and 5 are skipped, and web is behind them at the begin of the decay, step 7.
    state = json.loads(next(tmp_path.glob("a/work/checkpoints/step-00000012/state.json")).read_text())
    assert state["anomalies"]["left_out"] == [[3, 4]]
    assert [each["begin"] for each in state["mixture"]["schedule"]["segments"]] == [0, 32]
    for line in lines(tmp_path / "a/out"):
        names = {name for name in TEXTS if f"loss/{name}" in line}
        assert names == ({"web"} if line["step"] <= 6 else {"en", "code"})


def test_other_shares_are_a_resume_from_where_each_source_stands(
    tmp_path: Path, mixed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def recipe(steps: int = 12, **mix: float) -> Recipe:
        phase = {**PHASES[1], "steps": steps, "mix": mix}
        return make_sources_recipe(mixed, phases=[phase], checkpoint_every=100)

    before, after = recipe(web=0.8, en=0.1, code=0.1), recipe(web=0.2, en=0.6, code=0.2)
    whole = make_sources_job(tmp_path, before, "whole")
    run(whole)
    run_in_child(make_sources_job(tmp_path, before, tracker=SignalAt(4, signal.SIGTERM)))
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    with caplog.at_level("WARNING"):
        run(make_sources_job(tmp_path, after, "a"))
    # Killed behind the change, which the checkpoint then holds.
    run_in_child(make_sources_job(tmp_path, after, "b", tracker=SignalAt(8, signal.SIGTERM)))
    run(make_sources_job(tmp_path, after, "b"))

    change = "from step 6 on: pretrain.phases.0.mix.web 0.8 -> 0.2; pretrain.phases.0.mix.en 0.1 -> 0.6"
    assert change in caplog.text
    for name in ("a", "b"):
        summary = json.loads((tmp_path / name / "out/training.json").read_text())
        assert [each["step"] for each in summary["share_changes"]] == [6]
    changed, resumed, plain = (of_sources(tmp_path / name / "out") for name in ("a", "b", "whole"))
    assert changed == resumed
    assert changed[:5] == plain[:5]
    state = json.loads(next(tmp_path.glob("a/work/checkpoints/step-00000012/state.json")).read_text())
    old, new = state["mixture"]["schedule"]["segments"]
    assert (old["begin"], new["begin"]) == (0, 20)
    assert (sum(old["positions"]), sum(new["positions"])) == (0, 20)
    tokens = [changed[-1][f"tokens/{name}"] - changed[4][f"tokens/{name}"] for name in ("web", "en", "code")]
    assert [each / sum(tokens) for each in tokens] == pytest.approx([0.2, 0.6, 0.2], abs=0.05)


def test_too_little_text_ends_a_run_before_its_first_step(tmp_path: Path, mixed: Path) -> None:
    few = {name: {"max_epochs": 1} for name in TEXTS}

    with pytest.raises(RecipeError, match=r"all its sources are used up after \d+ of 100 steps") as refusal:
        run(make_sources_job(tmp_path, make_sources_recipe(mixed, few, phases=[{**PHASES[1], "steps": 100}])))

    assert refusal.value.exit_code == 2
    assert not (tmp_path / "a/work/checkpoints").exists() or not list(
        (tmp_path / "a/work/checkpoints").iterdir()
    )


def test_max_epochs_of_pretrain_counts_passes_over_the_taught_language(tmp_path: Path, mixed: Path) -> None:
    job = make_sources_job(
        tmp_path, make_sources_recipe(mixed, phases=[{**PHASES[1], "steps": 500}], max_epochs=2)
    )

    run(job)

    sources = json.loads((job.out / "training.json").read_text())["sources"]
    assert 1.8 < sources["web"]["epochs"] <= 2


def test_a_recipe_with_other_shares_finds_the_unfinished_run(tmp_path: Path, mixed: Path) -> None:
    def recipe(web: float, en_epochs: int = 50, **keys: Any) -> Recipe:
        phase = {**PHASES[1], "mix": {"web": web, "en": 1, "code": 1}}
        own = make_sources_recipe(mixed, {"en": {"max_epochs": en_epochs}}, phases=[phase], **keys)
        return own.model_copy(update={"storage": Storage(root=str(tmp_path / "root"))})

    def start(recipe: Recipe) -> MadeArtifact:
        inputs = {f"corpus.{name}": str(tmp_path / f"corpus.{name}") for name in TEXTS}
        return execute(
            STAGES["pretrain"], recipe, inputs | {"tokenizer": str(tmp_path / "tokenizer")}, (), None
        )

    # One checkpoint: that of the last shares has to lead to the directory of the first ones.
    stopped: dict[str, Any] = {"faults": {"budget_hours": 1e-9}, "keep_checkpoints": 1}
    with pytest.raises(BudgetReached):
        start(recipe(1, **stopped))
    for web in (2, 3):
        with pytest.raises(BudgetReached):
            start(recipe(web, en_epochs=40, **stopped))

    made = start(recipe(3, en_epochs=40))

    summary = json.loads((Path(made.uri) / "training.json").read_text())
    assert [each["step"] for each in summary["share_changes"]] == [2, 3]
    assert summary["share_changes"][0]["changes"] == [
        "pretrain.phases.0.mix.web 1 -> 2",
        "sources.en.max_epochs 50 -> 40",
    ]
