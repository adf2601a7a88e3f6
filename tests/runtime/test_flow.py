import argparse
from pathlib import Path

import pytest

from anadil.core.errors import RecipeError
from anadil.core.stages import FLOW, STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.retrain import Retrain
from anadil.recipe.sections import Recipe
from anadil.runtime.entry_point import stage_parser
from anadil.runtime.flow import Step, flow_of, named_inputs, options_of, recipe_of_step

PLAIN = Recipe()
RECIPE = parse_recipe(
    "sources: {web: {inputs: [w]}, law: {inputs: [l]}, en: {inputs: [e], language: en}}\n"
    "pretrain: {phases: [{trains: all, steps: 9, lr: 1.0e-3, mix: {web: .8, law: .1, en: .1}}]}",
    "r.yaml",
)


def test_a_run_without_sources_has_a_step_for_each_stage() -> None:
    steps = flow_of(parse_recipe("clean: {inputs: [a]}", "r.yaml"), "report")

    assert [(step.name, step.writes) for step in steps] == [
        (each.stage.name, each.stage.writes) for each in steps
    ]
    words = [
        {
            each.kind: each.kind
            for each in step.stage.reads
            if each.kind not in ("overlap", "written", "probabilities") and each.how != "waits"
        }
        for step in steps
    ]
    assert [step.reads(PLAIN) for step in steps] == words


def test_stages_wait_for_the_admission_of_new_text_where_the_recipe_retrains() -> None:
    retrained = RECIPE.model_copy(update={"retrain": Retrain()})
    waiting = [Step(stage=STAGES[name], source="web") for name in ("tokenizer", "encode")]

    assert "admit" in [step.name for step in flow_of(retrained)]
    assert "admit" not in [step.name for step in flow_of(RECIPE)]
    assert all("admission" in step.reads(retrained) for step in waiting)
    assert not any("admission" in step.reads(RECIPE) for step in waiting)
    assert list(Step(stage=STAGES["admit"]).reads(retrained)) == [
        f"{word}.{source}" for word in ("corpus", "overlap") for source in ("web", "law", "en")
    ]


def test_a_stage_of_one_source_has_a_step_for_each() -> None:
    steps = flow_of(RECIPE, "tokenizer")

    names = [step.name for step in steps]
    assert names[:3] == ["clean-web", "clean-law", "clean-en"]
    assert names[-1] == "tokenizer"
    assert [step.writes for step in steps[:3]] == ["corpus.web", "corpus.law", "corpus.en"]
    assert [Step.named(name) for name in names] == list(steps)


def test_a_stage_of_the_language_that_is_taught_reads_its_sources_alone() -> None:
    tokenizer, evaluate = (Step(stage=STAGES[name]) for name in ("tokenizer", "evaluate"))

    assert list(tokenizer.reads(RECIPE)) == ["corpus.web", "corpus.law"]
    assert [word for word in evaluate.reads(RECIPE) if "." in word] == [
        "corpus.web",
        "corpus.law",
        "corpus.en",
    ]


def test_the_report_reads_what_the_base_wrote_for_the_sources_that_it_writes() -> None:
    words = Step(stage=STAGES["report"]).reads(WRITTEN)

    assert [word for word in words if word.startswith("written")] == ["written.self"]
    assert {"tokens.web", "tokens.self", "overlap.web", "overlap.self"} <= words.keys()
    assert "written" not in Step(stage=STAGES["report"]).reads(PLAIN)


def test_a_trial_leaves_out_what_training_leaves_out_of_its_sources() -> None:
    trial = Step(stage=STAGES["trial"])

    assert list(trial.reads(RECIPE)) == [
        "corpus.web",
        "corpus.law",
        "tokenizer",
        "overlap.web",
        "overlap.law",
    ]
    assert "overlap" not in trial.reads(Recipe())


def test_the_step_of_a_source_gets_its_recipe_and_needs_its_name() -> None:
    recipe, source = recipe_of_step(STAGES["clean"], RECIPE, "en")

    assert (source, recipe.language, recipe.clean.inputs) == ("en", "en", ("e",))
    assert Step.of(STAGES["clean"], recipe).name == "clean-en"
    assert Step.of(STAGES["evaluate"], RECIPE).name == "evaluate"
    with pytest.raises(RecipeError, match="clean: the recipe has sources; name one with --source: web, law"):
        recipe_of_step(STAGES["clean"], RECIPE, "")


def given(*words: str) -> argparse.Namespace:
    return stage_parser(STAGES["tokenizer"]).parse_args(words)


def test_artifacts_of_sources_are_named_on_the_command_line_and_back() -> None:
    stage, words = STAGES["tokenizer"], ["--corpus", "web=/a=b", "--corpus", "law=s3://x/l"]

    inputs = named_inputs(stage, RECIPE, {"corpus": given(*words).corpus})

    assert inputs == {"corpus.web": "/a=b", "corpus.law": "s3://x/l"}
    assert options_of(inputs) == words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--corpus", "web=/a"], "tokenizer: --corpus law=URI missing"),
        (["--corpus", "/a"], "--corpus /a: the recipe has sources; name one of them, as in web=URI, law=URI"),
        (["--corpus", "en=/a"], "--corpus en=/a: the recipe has sources; name one of them"),
        (["--corpus", "web=/a", "--corpus", "web=/b"], "--corpus is given twice for source web: web=/b"),
    ],
)
def test_artifacts_that_do_not_fit_the_sources_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        named_inputs(STAGES["tokenizer"], RECIPE, {"corpus": given(*words).corpus})

    assert said in str(caught.value)


def test_without_sources_an_artifact_may_have_an_equals_sign_in_its_place(tmp_path: Path) -> None:
    place = f"{tmp_path}/a=b"

    inputs = named_inputs(STAGES["tokenizer"], PLAIN, {"corpus": [place]})

    assert inputs == {"corpus": place}
    assert len(FLOW) == len(STAGES)


def test_the_step_of_a_source_takes_its_artifacts_with_or_without_the_name() -> None:
    stage = STAGES["encode"]
    others = {"tokenizer": ["en=/t"], "overlap": ["/o"]}

    for value in ("/c", "en=/c"):
        inputs = named_inputs(stage, RECIPE, {"corpus": [value]} | others, "en")

        assert inputs == {"corpus": "/c", "tokenizer": "en=/t", "overlap": "/o"}


@pytest.mark.parametrize(
    ("stage", "given", "source", "said"),
    [
        ("encode", {"corpus": ["/c"], "tokenizer": ["/t"]}, "en", "--overlap is not given: documents that"),
        (
            "pretrain",
            {"corpus": ["web=/w", "law=/l", "en=/e"], "tokenizer": ["/t"]},
            "",
            "--tokens is not given: documents that stand in another source, or hold its held-out text, are not",
        ),
        ("encode", {"corpus": ["/c"], "tokenizer": ["/t"], "overlap": ["/o"]}, "en", ""),
        ("tokenizer", {"corpus": ["web=/w", "law=/l"]}, "", ""),
        # It tells of what others have left out, and leaves out nothing.
        ("report", {"corpus": ["web=/w", "law=/l", "en=/e"], "tokenizer": ["/t"], "model": ["/m"], "scores": ["/s"]}, "", ""),
    ],
)  # fmt: skip
def test_sources_that_nobody_compared_are_no_silent_matter(
    caplog: pytest.LogCaptureFixture, stage: str, given: dict[str, list[str]], source: str, said: str
) -> None:
    with caplog.at_level("WARNING"):
        named_inputs(STAGES[stage], RECIPE, given, source)

    assert [record.message.startswith(said) for record in caplog.records] == ([True] if said else [])


WRITTEN = parse_recipe(
    "sources: {web: {inputs: [w]}, self: {written_by: base, tokens: 5M}}\n"
    "pretrain: {phases: [{trains: all, steps: 9, lr: 1.0e-3, mix: {web: .9, self: .1}}]}",
    "r.yaml",
)


def test_only_a_source_that_the_base_writes_has_a_step_for_it() -> None:
    steps = flow_of(WRITTEN, "clean")

    assert [step.name for step in steps] == ["replay-self", "clean-web", "clean-self"]
    assert [step.reads(WRITTEN) for step in steps] == [{}, {}, {"written": "written.self"}]
    # The step itself knows the recipe of its source alone.
    assert steps[2].reads(WRITTEN.of_source("self")) == {"written": "written.self"}
    assert "replay" not in {step.stage.name for step in flow_of(RECIPE)}
    assert recipe_of_step(STAGES["replay"], WRITTEN, "")[1] == "self"


@pytest.mark.parametrize(
    ("recipe", "source", "said"),
    [
        (WRITTEN, "web", "replay: source web has no `written_by`; set it"),
        (RECIPE, "", "replay: no source has `written_by`; set it"),
        (PLAIN, "", "replay: no source has `written_by`; set it"),
        (WRITTEN, "other", "sources: none is called 'other'"),
    ],
)
def test_a_step_that_no_source_has_is_refused(recipe: Recipe, source: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe_of_step(STAGES["replay"], recipe, source)


def test_what_the_base_wrote_is_needed_by_its_source_and_read_by_no_other() -> None:
    clean = STAGES["clean"]

    assert named_inputs(clean, WRITTEN, {"written": ["/w"]}, "self") == {"written": "/w"}
    with pytest.raises(RecipeError, match="clean: --written missing"):
        named_inputs(clean, WRITTEN, {"written": []}, "self")
    with pytest.raises(RecipeError, match="--written /w: clean-web reads none by this recipe; leave it out"):
        named_inputs(clean, WRITTEN, {"written": ["/w"]}, "web")


def test_finetuning_takes_the_model_to_begin_with_by_either_option() -> None:
    plain = parse_recipe("language: az", "")
    merging = parse_recipe("{language: az, merge: {base_share: 0.5}}", "")
    for option in ("model", "merged"):
        assert named_inputs(STAGES["finetune"], merging, {option: ["uri"]}) == {"merged": "uri"}
        assert named_inputs(STAGES["finetune"], plain, {option: ["uri"]}) == {"model": "uri"}
    with pytest.raises(RecipeError, match="given twice"):
        named_inputs(STAGES["finetune"], merging, {"model": ["a"], "merged": ["b"]})
