import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from anadil.cli import main
from anadil.estimate.instances import machines
from tests.kit.one_text import ONE_TEXT


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANADIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    assert main.main(["recipe", "copy", "azerbaijani-1b", str(path)]) == 0
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main.main(["plan", *arguments, "-o", "json"]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main.main(["plan", *arguments])
    return code, capsys.readouterr().err


def test_a_plan_says_first_whether_it_fits_and_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    code = main.main(["plan", "azerbaijani-1b", "--tokens", "web=2.5e9", "--tokens", "en=2e9"])

    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("azerbaijani-1b. Fits: ")
    assert "2 x p4d.24xlarge" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 100


def test_degrees_that_do_not_divide_the_devices_of_an_option_are_planned_anew(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()

    code = main.main(["plan", mine, "--instance", "p5.48xlarge", "--nodes", "1", "--best"])

    said = capsys.readouterr()
    assert code == 0
    assert (
        "the recipe's degrees of parallelism do not divide 8 devices (1 x p5.48xlarge); planned with FSDP 8, "
        "micro-batch 28 (--best prints its lines of the recipe)"
    ) in " ".join(said.err.split())
    assert "    shard: 8\n" in said.out


@pytest.mark.parametrize("stage", ["clean", "tokenizer"])
def test_a_plan_that_ends_before_training_is_refused(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refused(capsys, "smoke", "--until", stage)

    assert code == 2
    assert f"--until {stage}: a plan begins with pretrain; name pretrain or a later stage" in said
    assert ("`anadil clean plan`" in said) == (stage == "clean")


def test_best_prints_the_fastest_layout_as_lines_of_a_recipe(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main.main(["plan", mine, "--instance", "p5.48xlarge", "--nodes", "2", "--best"])
    lines = capsys.readouterr().out.partition("Lines for the recipe")[2]
    plan = planned(capsys, mine, "--instance", "p5.48xlarge", "--nodes", "2", "--best")

    pasted = yaml.safe_load(lines)
    best = plan["search"]["best"][0]
    assert pasted["pretrain"]["micro_batch_size"] == best["micro_batch_size"]
    assert pasted["pretrain"]["parallelism"]["shard"] == best["shard"]
    assert pasted["pretrain"]["activation_checkpointing"] == best["activation_checkpointing"]
    assert pasted["cluster"] == {"instance": "p5.48xlarge", "nodes": 2}
    settings = [word for key, value in plan["settings"].items() for word in ("--set", f"{key}={value}")]
    assert planned(capsys, mine, *settings)["from"] == "recipe"


def test_what_fits_nowhere_is_refused_with_settings_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refused(capsys, "japanese-70b", "--instance", "p4d.24xlarge", "--nodes", "1")

    assert code == 4
    assert "does not fit" in said
    assert "  --set pretrain.parallelism.shard=8 --set cluster.instance=p6-b200.48xlarge  (" in said
    # The recipe's own degree does not divide eight devices, so that each line has to name one that does.
    settings = [line for line in said.splitlines() if line.startswith("  ")]
    assert all("pretrain.parallelism.shard=" in line for line in settings)
    taken = ["--set", "pretrain.parallelism.shard=8", "--nodes", "1", "--instance", "p6-b200.48xlarge"]
    assert planned(capsys, "japanese-70b", *taken)["from"] == "recipe"


def test_every_known_machine_gives_a_plan_or_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in machines():
        code = main.main(["plan", "azerbaijani-1b", "--instance", kind.name, "--nodes", "2"])

        captured = capsys.readouterr()
        assert code in (0, 4), captured.err
        assert captured.out if code == 0 else "does not fit" in captured.err


@pytest.mark.parametrize("given", ["0", "1.5", "nan"])
def test_a_count_that_is_none_is_a_mistake_of_usage(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(["plan", "smoke", "--nodes", given])

    assert stopped.value.code == 2
    assert "--nodes" in capsys.readouterr().err


def test_run_refuses_a_model_that_does_not_fit_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"

    huge = (ONE_TEXT, "pretrain.sequence_length=1000000", "pretrain.micro_batch_size=8")
    code = main.main(["run", "smoke", "--work", str(work), *(f"--set={each}" for each in huge)])

    said = capsys.readouterr().err
    assert code == 4
    assert "pretrain does not fit" in said
    assert "--set pretrain." in said
    assert not work.exists()


def test_files_of_text_say_how_long_epochs_are_where_no_tokens_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    without = planned(capsys, "own")
    (tmp_path / "text").mkdir()
    (tmp_path / "text/pages.html").write_bytes(b"<p>" + b"a" * 1_000_000)
    (tmp_path / "text/lines.jsonl").write_bytes(b'{"text": "b"}' * 20_000)
    found = planned(capsys, "own")

    # 4 passes over (200,000 + 260,000) / 3 tokens, which are 19 of 20 in batches of 8,192.
    assert found["time"]["steps"] == 78
    assert found["text"][0]["epochs"] == pytest.approx(4, rel=0.02)
    assert without["time"]["steps"] == 20_000
    assert (
        "text: about 153,334 tokens (by the sizes of its files, before cleaning) at share 0.95 for 78 of 20,000 steps is "
        "3.95 epochs (pretrain.max_epochs)"
    ) in found["text"][0]["sentence"]


def test_a_bucket_is_not_asked_where_its_text_decides_no_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.cli.runs.plan.text_of", lambda _: pytest.fail("asked"))

    assert planned(capsys, "smoke", "--set", "clean.inputs=[s3://nowhere/x.jsonl]")["text"] == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["web=2.5e9"], "the recipe has sources; write --tokens web=N --tokens en=N"),
        (["1000"], "--tokens 1000: the recipe has sources"),
        (["web=1", "web=1", "en=1"], "--tokens web=1, web=1, en=1: the recipe has sources"),
    ],
)
def test_tokens_are_those_of_each_source(
    given: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refused(capsys, "azerbaijani-1b", *(f"--tokens={each}" for each in given))

    assert code == 2
    assert told in said


def test_tokens_of_sources_say_how_often_each_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, "azerbaijani-1b", "--tokens", "web=2.5e9", "--tokens", "en=2e9")

    first, time = plan["expected"], plan["time"]
    assert next(iter(plan)) == "expected"
    assert first["hours"] == (time["hours_low"] + time["hours_high"]) / 2
    assert (first["hours"] > time["hours"], first["verdict"]) == (True, "fits")
    web, en = plan["text"]
    assert web["epochs"] == pytest.approx((5_000 + 15_000 * 0.8) * 224 * 2_048 / 2.5e9, rel=1e-3)
    assert en["epochs"] == pytest.approx(15_000 * 0.2 * 224 * 2_048 / 2e9, rel=1e-3)


def test_the_size_of_a_text_that_is_not_here_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "own", "--set", "clean.inputs=[s3://nowhere/x.jsonl]"]) == 0

    assert "all steps are counted; give --tokens N" in capsys.readouterr().err


def test_a_plan_until_pretrain_asks_nothing_of_later_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = {
        "model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
        "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    run = ["azerbaijani-1b", "--instance", "p5.48xlarge", "--nodes", "64", "--set", f"base.model={tmp_path}"]
    run += ["--set", "tokenizer.strategies=[base]", "--set", "pretrain.batch_size=512"]
    run += ["--set", "pretrain.parallelism.shard=64", "--set", "pretrain.parallelism.tensor=8"]
    run += ["--set", "pretrain.micro_batch_size=1", "--set", "pretrain.activation_checkpointing=full"]

    code, said = refused(capsys, *run)
    found = planned(capsys, *run, "--until", "pretrain")

    assert code == 4
    assert "does not fit" in said
    assert "--until pretrain" in said
    assert found["after"] == []
    assert found["expected"]["verdict"] != "no"
