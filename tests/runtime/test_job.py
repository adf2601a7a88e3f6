import contextlib
import dataclasses
import os
import signal
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel

from anadil.artifacts.artifact import Manifest, read_manifest, seal
from anadil.core.errors import DataError, RecipeError, Stopped
from anadil.core.stages import FLOW, STAGES
from anadil.recipe.finetune import Preference
from anadil.recipe.load import parse_recipe
from anadil.recipe.retrain import Champion, Retrain
from anadil.recipe.sections import Base, Recipe, Trial
from anadil.recipe.sources import Source
from anadil.runtime.cache_key import (
    base_files,
    code_digest,
    origin_changes,
    origin_differences,
    recipe_origin,
    stage_origin,
)
from anadil.runtime.job import external_files, external_side_files, named_side_files
from anadil.runtime.signals import Stop

INPUT = Manifest(kind="corpus", key="k", origin={}, files={"a": {"bytes": 1, "sha256": "00"}})


def causes(stage: str, before: Recipe, after: Recipe) -> list[str]:
    inputs = dict.fromkeys(STAGES[stage].words, INPUT)
    old, new = (stage_origin(STAGES[stage], recipe, inputs, ()) for recipe in (before, after))
    return origin_changes(old, new, STAGES[stage].keys)


def test_what_a_stage_reads_was_written_by_an_earlier_one() -> None:
    made: set[str] = set()
    for stage in FLOW:
        assert made.issuperset(stage.words), stage.name
        made.add(stage.writes)


CHAMPION = Champion(name="az", version="1", uri="/model", digest="0a", artifacts={})
"""Left out, its keys are none."""


def test_every_section_of_the_flow_is_a_key_of_the_recipe() -> None:
    for stage in FLOW:
        for name in (*stage.keys, *filter(None, [stage.files.key])):
            node: object = Recipe(retrain=Retrain(champion=CHAMPION))
            for key in name.split("."):
                # Keys of `sources` are those of each.
                node = Source.model_fields[key] if node == {} else getattr(node, key)


def test_only_keys_of_its_own_sections_change_a_stage() -> None:
    before = parse_recipe("", "r")
    after = parse_recipe("", "r", ["finetune.lr=1e-3", "pretrain.batch_size=8", "storage.root=/elsewhere"])

    assert causes("clean", before, after) == []
    assert causes("pretrain", before, after) == ["recipe pretrain.batch_size 224 -> 8"]
    assert causes("finetune", before, after) == ["recipe finetune.lr 0.0001 -> 0.001"]


def test_an_input_is_known_by_its_bytes_not_by_its_place() -> None:
    other = Manifest(kind="corpus", key="k", origin={}, files={"a": {"bytes": 1, "sha256": "11"}})
    stage = STAGES["tokenizer"]

    old, same, new = (
        stage_origin(stage, Recipe(), {"corpus": manifest}, ())
        for manifest in (
            INPUT,
            Manifest(kind="corpus", key="other", origin={"x": "y"}, files=INPUT.files),
            other,
        )
    )

    assert origin_differences(old, same) == []
    assert origin_differences(old, new) == ["input corpus changed"]


def test_a_file_whose_name_is_not_utf8_can_stand_in_a_manifest(tmp_path: Path) -> None:
    names = [os.fsdecode(os.fsencode(tmp_path) + end) for end in (b"/\xfe.txt", b"/\xff.txt")]
    for name in names:
        Path(name).write_text("salam")

    origin = stage_origin(STAGES["clean"], Recipe(), {}, names)
    (tmp_path / "corpus").mkdir()
    sealed = seal(tmp_path / "corpus", kind="corpus", origin=origin)

    assert len([name for name in origin if name.startswith("file ")]) == 2
    assert read_manifest(str(tmp_path / "corpus")) == sealed


def test_a_base_model_directory_is_known_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    recipe = parse_recipe("", "r", [f"base.model={tmp_path}"])
    old = stage_origin(STAGES["tokenizer"], recipe, {"corpus": INPUT}, ())

    (tmp_path / "config.json").write_text("[]")
    new = stage_origin(STAGES["tokenizer"], recipe, {"corpus": INPUT}, ())

    assert origin_differences(old, new) == ["base files changed"]


@pytest.mark.parametrize(
    "name", ["README.md", ".gitattributes", "LICENSE.txt", ".DS_Store", "pytorch_model.bin"]
)
def test_what_is_not_read_of_a_base_model_makes_it_no_other(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    old = base_files(str(tmp_path))

    (tmp_path / name).write_text("new")

    assert base_files(str(tmp_path)) == old


def test_other_weights_of_the_same_size_are_another_base_model(tmp_path: Path) -> None:
    size = 40 * 1024**2
    (tmp_path / "model.safetensors").write_bytes(bytes(size))
    old = base_files(str(tmp_path))
    again = base_files(str(tmp_path))

    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\1" * (size // 4))
    new = base_files(str(tmp_path))

    assert old == again
    assert old != new


def test_a_language_pack_is_known_by_its_content_not_by_its_place(tmp_path: Path) -> None:
    def key(name: str, text: str) -> dict[str, str]:
        pack = tmp_path / name
        pack.write_text(text, "utf-8")
        return recipe_origin(Recipe.model_validate({"language": str(pack)}), ("language",))

    pack = "code: qaa\nname: X\nscript: Latn\n"

    assert key("a.yaml", pack) == key("b.yaml", pack) != key("a.yaml", pack + "stop_words: la\n")
    assert recipe_origin(parse_recipe("language: ja", "r"), ("language",)) == {"recipe language": '"ja"'}
    assert recipe_origin(Recipe(), ("language",)) == {}


def test_the_code_of_a_stage_is_its_own() -> None:
    digests = {code_digest(stage) for stage in FLOW}

    assert len(digests) == len(FLOW)
    assert code_digest(FLOW[0]) == code_digest(FLOW[0])


def test_of_the_program_the_result_version_alone_is_in_the_origin() -> None:
    stage = STAGES["clean"]

    origin = stage_origin(stage, Recipe(), {}, ())
    raised = stage_origin(
        dataclasses.replace(stage, result_version=stage.result_version + 1), Recipe(), {}, ()
    )

    named = {name for name in origin if not name.startswith("recipe ")}
    assert named == {"stage", "result version"}
    assert origin_differences(origin, raised) == [
        f"result version {stage.result_version} -> {stage.result_version + 1}"
    ]


def test_an_origin_names_a_key_that_differs_from_its_default_and_decides_the_result() -> None:
    overrides = ["finetune.dropout=0", "pretrain.phases.0.embedding_lr=0.1", "pretrain.compile=true"]
    recipe = parse_recipe("", "r", [*overrides, "finetune.preference.inputs=[a]", "tokenizer.trial.steps=5"])

    finetune, pretrain, tokenizer, trial = (
        recipe_origin(recipe, STAGES[name].keys) for name in ("finetune", "pretrain", "tokenizer", "trial")
    )

    assert finetune == {"recipe finetune.dropout": "0.0", "recipe finetune.preference.inputs": '["a"]'}
    assert list(pretrain) == ["recipe pretrain.phases"]
    assert pretrain["recipe pretrain.phases"].count("embedding_lr") == 1  # the other phase has its default
    assert tokenizer == {}
    assert trial == {"recipe tokenizer.trial.steps": "5", **pretrain}
    assert all(recipe_origin(Recipe(), stage.keys) == {} for stage in FLOW)


def test_an_optional_section_has_a_required_key_or_its_origin_would_be_that_of_none() -> None:
    sections = [getattr(Recipe(), name) for name in Recipe.model_fields]
    optional = [
        model
        for section in sections
        if isinstance(section, BaseModel)
        for field in type(section).model_fields.values()
        for model in typing.get_args(field.annotation)
        if field.default is None and isinstance(model, type) and issubclass(model, BaseModel)
    ]

    assert {Preference, Trial} <= set(optional)
    assert all(any(each.is_required() for each in model.model_fields.values()) for model in optional)


def test_what_lies_beside_the_content_is_an_input_of_the_report_alone() -> None:
    files: dict[str, dict[str, str | int]] = {
        name: {"bytes": 1, "sha256": "00"} for name in ("a", "stats.json")
    }
    before = Manifest(kind="corpus", key="k", origin={}, files=files, varying=["stats.json"])
    after = dataclasses.replace(before, files={**files, "stats.json": {"bytes": 2, "sha256": "11"}})

    changed = {
        stage.name: origin_differences(
            *(stage_origin(stage, Recipe(), {"corpus": each}, ()) for each in (before, after))
        )
        for stage in FLOW
        if "corpus" in stage.words
    }

    assert changed == {
        "overlap": [],
        "admit": ["input corpus changed"],
        "tokenizer": [],
        "trial": ["input corpus changed"],
        "encode": [],
        "pretrain": [],
        "merge": [],
        "evaluate": [],
        "report": ["input corpus changed"],
    }


def test_given_files_stand_for_those_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt").touch()
    recipe = parse_recipe("", "r", [f"clean.inputs=['{tmp_path}/a.txt']"])

    assert external_files(STAGES["clean"], recipe) == (f"{tmp_path}/a.txt",)
    assert external_files(STAGES["clean"], recipe, [f"{tmp_path}/b.txt"]) == (f"{tmp_path}/b.txt",)
    assert external_files(STAGES["tokenizer"], recipe) == ()
    assert external_files(STAGES["evaluate"], recipe) == ()


def test_a_stage_without_its_files_says_which_key_to_fill() -> None:
    with pytest.raises(RecipeError) as caught:
        external_files(STAGES["finetune"], Recipe())

    assert str(caught.value) == "finetune.inputs: names no file; list the data to read"


def test_a_signal_ends_at_once_outside_and_waits_inside_a_deferred_block() -> None:
    stop = Stop()
    stop.listen()

    with stop.deferred() as told:
        os.kill(os.getpid(), signal.SIGTERM)
        saved = told.signal

    assert saved == signal.SIGTERM
    with pytest.raises(Stopped, match="stopped by SIGTERM; run the same command again") as caught:
        stop.leave()
    assert caught.value.exit_code == 143
    with pytest.raises(Stopped):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_second_signal_does_not_wait() -> None:
    stop = Stop()
    stop.listen()

    with stop.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_does_not_wait_where_there_is_nothing_to_save() -> None:
    stop = Stop()
    stop.listen()

    with stop.deferred():
        stop.unsaved = False
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_a_library_swallowed_is_raised_at_the_next_look() -> None:
    stop = Stop()
    stop.listen()
    with contextlib.suppress(Exception):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        stop.check()
    with pytest.raises(Stopped), stop.deferred():
        pytest.fail("began to train")


def test_a_language_without_built_in_text_is_not_taken_for_a_file() -> None:
    recipe = Recipe.model_validate({"tokenizer": {"keep": ["en", "de"]}})

    with pytest.raises(DataError, match=r"tokenizer\.keep: 'de' is neither a file nor a language with"):
        external_side_files(STAGES["tokenizer"], recipe)


def test_a_base_that_an_input_was_made_of_and_that_has_gone_is_no_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, which has never seen the directory."""
    monkeypatch.chdir(tmp_path)
    recipe = Recipe.model_validate({"base": {"model": "models/mine"}})
    of_directory, of_hub = (
        Manifest(kind="tokenizer", key="k", origin=origin, files={}, recipe=recipe.model_dump(mode="json"))
        for origin in ({"base files": "1f"}, {})
    )
    inputs = {"corpus": INPUT, "tokenizer": of_directory}

    with pytest.raises(DataError, match=r"the directory 'models/mine' has gone, and the tokenizer was made"):
        stage_origin(STAGES["pretrain"], recipe, inputs, ())

    assert "base files" not in stage_origin(STAGES["pretrain"], recipe, {**inputs, "tokenizer": of_hub}, ())
    another = recipe.model_copy(update={"base": Base(model="meta-llama/Llama-3.2-1B")})
    assert stage_origin(STAGES["pretrain"], another, inputs, ())
    (tmp_path / "models/mine").mkdir(parents=True)
    assert "base files" in stage_origin(STAGES["pretrain"], recipe, inputs, ())


def test_of_the_tasks_files_are_read_and_names_are_not() -> None:
    tasks = ["belebele_azj_Latn", "auto", "own.yaml", "s3://bucket/tasks/", "questions.jsonl"]
    recipe = Recipe.model_validate({"evaluate": {"tasks": tasks}})

    places = ("own.yaml", "s3://bucket/tasks/", "questions.jsonl")
    assert named_side_files(STAGES["tasks"], recipe) == {"evaluate.tasks": places}
    for names in ("auto", tasks[:1]):
        recipe = Recipe.model_validate({"evaluate": {"tasks": names}})
        assert named_side_files(STAGES["tasks"], recipe) == {}


def test_a_run_from_the_base_has_one_key_with_the_section_retrain_and_without_it() -> None:
    sections = STAGES["pretrain"].keys
    section = Retrain.model_validate({"epochs": 2})
    champion = Champion(name="n", version="1", uri="m", digest="d", artifacts={"model": "m"})
    week = Recipe().model_copy(update={"retrain": section.model_copy(update={"champion": champion})})
    week = week.model_copy(update={"pretrain": week.pretrain.model_copy(update={"start_from": "m"})})

    plain = recipe_origin(Recipe(), sections)

    assert recipe_origin(Recipe().model_copy(update={"retrain": section}), sections) == plain
    assert recipe_origin(week, sections).items() >= {"recipe retrain.epochs": "2.0"}.items()
    # A checkpoint holds the origin alone, and a killed week goes on from it.
    origin = recipe_origin(week, sections)
    assert origin_changes(origin, origin, sections) == []
    assert origin_changes(plain, origin, sections)
