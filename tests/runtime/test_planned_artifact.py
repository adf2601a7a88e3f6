"""An artifact before it is made: what is there already, and what differs."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.core.errors import IntegrityError, RecipeError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime import entry_point
from anadil.runtime.cache_key import origin_changes, stage_origin
from anadil.runtime.execute import execute, find_for_group
from anadil.runtime.lookup import LOOKED_UP, Lookup, look_up
from anadil.runtime.planned_artifact import (
    PlannedArtifact,
    place_of,
    planned_artifact,
    refuse_other_sources,
    refuse_strangers,
    work_of,
)
from tests.kit.harness import again

PRETRAIN = STAGES["pretrain"]


@pytest.fixture
def planned(recipe: Recipe) -> PlannedArtifact:
    """A model of two sealed inputs below `storage.root`."""
    inputs = {}
    for word in ("corpus", "tokenizer"):
        folder = Path(str(recipe.storage.root)) / word / "first"
        seal(folder, word, {"stage": word}, recipe)
        inputs[word] = str(folder)
    return planned_artifact(PRETRAIN, recipe, inputs, (), None)


def seal(folder: Path, kind: str, origin: Mapping[str, str], recipe: Recipe) -> Path:
    folder.mkdir(parents=True)
    (folder / "text").write_text(kind)
    artifact.seal(folder, kind=kind, origin=origin, recipe=recipe.model_dump(mode="json"))
    return folder


def test_one_of_another_recipe_input_or_result_version_is_not(
    recipe: Recipe, planned: PlannedArtifact
) -> None:
    origin, other = planned.origin, again(recipe, "pretrain.weight_decay=0.3")
    for made_from, of in (
        ({**origin, "recipe pretrain.weight_decay": "0.3"}, other),
        ({**origin, "input corpus": "00"}, recipe),
        ({**origin, "result version": "1"}, recipe),
    ):
        seal(Path(place_of(PRETRAIN, planned.root, made_from)), "model", made_from, of)

    lookup = look_up(planned)

    causes = {
        change
        for _, each in lookup.neighbours
        for change in origin_changes(each.origin, planned.origin, PRETRAIN.keys)
    }
    assert causes == {
        "recipe pretrain.weight_decay 0.3 -> 0.1",
        "input corpus changed",
        f"result version 1 -> {PRETRAIN.result_version}",
    }


def test_a_place_of_its_own_takes_its_artifact_and_no_other(
    recipe: Recipe, planned: PlannedArtifact, tmp_path: Path
) -> None:
    inputs = {word: f"{planned.root}/{word}/first" for word in ("corpus", "tokenizer")}
    mine = seal(tmp_path / "mine", "model", planned.origin, recipe)

    assert execute(PRETRAIN, recipe, inputs, (), str(mine)).uri == str(mine)
    with pytest.raises(RecipeError, match="made from something else \\(recipe seed 0 -> 8\\)"):
        execute(PRETRAIN, again(recipe, "seed=8"), inputs, (), str(mine))


def test_a_killed_run_whose_sources_had_other_shares_is_resumed_in_its_work_directory(
    recipe: Recipe, planned: PlannedArtifact
) -> None:
    shares = {"recipe sources.web.max_epochs": "3.0"}
    work = work_of(place_of(PRETRAIN, planned.root, planned.origin | shares))
    named = {name: text for name, text in planned.origin.items() if name.startswith(("recipe ", "result"))}
    folder = seal(work / "checkpoints" / "step-00000012", "checkpoint", named, recipe)
    (folder / "state.json").write_text(json.dumps({"mixture": {"origin": shares}}))

    assert work != planned.work
    assert look_up(planned).planned.earlier_work == work
    # Same recipe, another corpus: the artifact's key, and so its directory, would be another.
    renamed = work.rename(work.with_name("0123456789abcdef.work"))
    assert look_up(planned).planned.earlier_work is None
    renamed.rename(work)
    seal(planned.work / "checkpoints" / "step-00000001", "checkpoint", {}, recipe)
    assert look_up(planned).planned.earlier_work is None, "its own directory comes first"


def test_neighbours_that_are_damaged_or_strange_are_passed_over(planned: PlannedArtifact) -> None:
    for name, content in (("a", "{"), ("b", json.dumps({"kind": "model"}))):
        folder = Path(planned.root) / "model" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(content)

    assert look_up(planned) == Lookup(planned=planned)


URIS = {"model": "s3://a/model", "adapter": "s3://a/adapter", "scores": "s3://a/scores"}


def manifest(kind: str, content: str = "", **origin: str) -> Manifest:
    files: dict[str, dict[str, str | int]] = {"f": {"bytes": 1, "sha256": content}}
    named = {f"input {word}": digest for word, digest in origin.items()}
    return Manifest(kind=kind, key="", origin=named, files=files)


MODEL, OTHER = manifest("model", "a"), manifest("model", "b")
ADAPTER = manifest("adapter", model=MODEL.digest)


@pytest.mark.parametrize(
    ("kind", "made"),
    [("adapter", ADAPTER), ("scores", manifest("scores", model=MODEL.digest, adapter=ADAPTER.digest))],
)
def test_an_adapter_or_scores_beside_another_model_are_refused_with_both_digests(
    kind: str, made: Manifest
) -> None:
    refuse_strangers({"model": MODEL, kind: made}, URIS)

    with pytest.raises(IntegrityError) as refused:
        refuse_strangers({"model": OTHER, kind: made}, URIS)

    text = str(refused.value)
    assert text.startswith(f"s3://a/{kind}: is made from the model {MODEL.digest[:16]}, and s3://a/model is")
    assert OTHER.digest[:16] in text


def test_scores_beside_another_adapter_are_refused() -> None:
    scores = manifest("scores", model=MODEL.digest, adapter=ADAPTER.digest)
    again = manifest("adapter", "retrained", model=MODEL.digest)

    with pytest.raises(IntegrityError, match="is made from the adapter"):
        refuse_strangers({"model": MODEL, "adapter": again, "scores": scores}, URIS)


def test_what_does_not_say_what_it_is_made_from_is_not_judged() -> None:
    refuse_strangers({"model": MODEL, "adapter": manifest("adapter")}, URIS)


def test_evaluate_does_not_begin_with_an_adapter_of_another_model(tmp_path: Path) -> None:
    inputs = {}
    for word, origin in (("corpus", {}), ("model", {}), ("adapter", {"input model": "another"})):
        (tmp_path / word).mkdir()
        (tmp_path / word / "content").write_text(word)
        artifact.seal(tmp_path / word, kind=word, origin=origin)
        inputs[word] = str(tmp_path / word)
    recipe = Recipe.model_validate({"evaluate": {"champion": "none"}, "base": {"model": "tiny"}})

    with pytest.raises(IntegrityError, match="adapter: is made from the model another, and"):
        planned_artifact(STAGES["evaluate"], recipe, inputs, (), str(tmp_path / "out"))

    del inputs["adapter"]
    assert planned_artifact(STAGES["evaluate"], recipe, inputs, (), str(tmp_path / "out")).key


def test_the_processes_of_a_node_leave_it_to_their_launcher_to_read_all_manifests(
    recipe: Recipe, planned: PlannedArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = {**planned.origin, "recipe seed": "1"}
    seal(Path(place_of(PRETRAIN, planned.root, origin)), "model", origin, again(recipe, "seed=1"))
    monkeypatch.setenv(LOOKED_UP, "")  # so that it is taken back
    inputs = {word: str(Path(planned.root) / word / "first") for word in ("corpus", "tokenizer")}

    alone = look_up(planned)
    looked = find_for_group(PRETRAIN, recipe, inputs, (), None)
    in_group = look_up(planned)

    assert (len(alone.neighbours), looked, len(in_group.neighbours)) == (1, None, 0)
    made = seal(Path(planned.target), "model", planned.origin, recipe)
    again_looked = find_for_group(PRETRAIN, recipe, inputs, (), None)
    assert again_looked is not None
    assert again_looked.uri == str(made)


def test_a_finished_artifact_starts_no_processes(
    recipe: Recipe,
    planned: PlannedArtifact,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    made = seal(Path(planned.target), "model", planned.origin, recipe)
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe.model_dump_json())
    monkeypatch.setattr(entry_point, "_under_torchrun", lambda *_: pytest.fail("torchrun was started"))
    inputs = [
        part for word in ("corpus", "tokenizer") for part in (f"--{word}", f"{planned.root}/{word}/first")
    ]
    many = ["--set", "cluster.processes_per_node=3"]

    assert entry_point.main("pretrain", ["--recipe", str(file), *many, *inputs]) == 0

    assert capsys.readouterr().out == f"{made}\n"


def test_nodes_of_one_job_meet_before_they_look_for_a_finished_artifact(
    recipe: Recipe, planned: PlannedArtifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # One that came late would find what another run has just made and end, while the others wait for it.
    seal(Path(planned.target), "model", planned.origin, recipe)
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe.model_dump_json())
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "first:29400")
    monkeypatch.setattr(entry_point, "_under_torchrun", lambda *_: 77)
    inputs = [
        part for word in ("corpus", "tokenizer") for part in (f"--{word}", f"{planned.root}/{word}/first")
    ]

    assert entry_point.main("pretrain", ["--recipe", str(file), *inputs]) == 77


TABLES = {
    name: f"{{inputs: [{name}], language: {language}, max_tokens: {most}}}"
    for name, language, most in (("web", "az", 9), ("law", "az", 9), ("en", "en", 9))
}


def recipe_of(tables: Mapping[str, str]) -> Recipe:
    named = ", ".join(f"{name}: {table}" for name, table in tables.items())
    mix = ", ".join(f"{name}: 1" for name in tables)
    return parse_recipe(
        f"language: az\nsources: {{{named}}}\n"
        f"pretrain: {{phases: [{{trains: all, steps: 9, lr: 1.0e-3, mix: {{{mix}}}}}]}}",
        "r.yaml",
    )


RECIPE = recipe_of(TABLES)
RENAMED = recipe_of({name if name != "law" else "laws": table for name, table in TABLES.items()})
LONGER = recipe_of(TABLES | {"law": TABLES["law"].replace("9", "99")})


def sealed(kind: str, origin: Mapping[str, str], recipe: Recipe, content: str) -> Manifest:
    files: dict[str, dict[str, str | int]] = {"f": {"bytes": 1, "sha256": content}}
    return Manifest(
        kind=kind, key="", origin=dict(origin), files=files, recipe=recipe.model_dump(mode="json")
    )


def corpus(source: str, recipe: Recipe = RECIPE) -> Manifest:
    return sealed("corpus", {}, recipe.of_source(source), source)


def tokens(source: str, recipe: Recipe = RECIPE) -> Manifest:
    origin = stage_origin(STAGES["encode"], recipe.of_source(source), {"corpus": corpus(source, recipe)}, ())
    return sealed("tokens", origin, recipe.of_source(source), source)


def overlap(source: str) -> Manifest:
    inputs = {f"corpus.{name}": corpus(name) for name in TABLES}
    origin = stage_origin(STAGES["overlap"], RECIPE.of_source(source), inputs, ())
    return sealed("overlap", origin, RECIPE.of_source(source), source)


def refuse(recipe: Recipe, **inputs: Manifest) -> None:
    named = {word.replace("_", "."): manifest for word, manifest in inputs.items()}
    refuse_other_sources(recipe, named, {word: f"s3://a/{word}" for word in named})


def test_artifacts_of_the_sources_that_name_them_are_taken() -> None:
    refuse(RECIPE, tokens_web=tokens("web"), tokens_law=tokens("law"), tokens_en=tokens("en"))
    refuse(RECIPE, corpus_web=corpus("web"), corpus_law=corpus("law"), corpus_en=corpus("en"))
    refuse(RECIPE.of_source("en"), corpus=corpus("en"), overlap=overlap("en"))
    # The step of a source, which compares it with the others.
    refuse(RECIPE.of_source("en"), corpus_web=corpus("web"), corpus_law=corpus("law"), corpus_en=corpus("en"))
    # How often a source may be repeated is no matter of its tokens.
    refuse(
        recipe_of(TABLES | {"law": "{inputs: [law], max_tokens: 9, max_epochs: 2}"}), tokens_law=tokens("law")
    )
    # A source that is renamed has the corpus that it had.
    refuse(RENAMED, corpus_laws=corpus("law"))


@pytest.mark.parametrize(
    ("recipe", "inputs", "said"),
    [
        (RECIPE, {"tokens_law": tokens("web")}, "s3://a/tokens.law: are tokens of web, not of source law; give the"),
        (RENAMED, {"tokens_laws": tokens("law")}, "are tokens of law, not of source laws"),
        (
            LONGER,
            {"tokens_law": tokens("law")},
            "are tokens with sources.law.max_tokens 9, and the recipe's is 99; give the tokens of source law",
        ),
        (
            RECIPE,
            {"tokens_law": sealed("tokens", {}, Recipe(), "a")},
            "are tokens of a recipe without sources, not of source law",
        ),
        (
            RECIPE,
            {"corpus_en": corpus("web")},
            "s3://a/corpus.en: is a corpus of language az, and that of source en is en; give the corpus of source en",
        ),
        (RECIPE.of_source("en"), {"corpus": corpus("law")}, "is a corpus of language az"),
        (
            RECIPE.of_source("en"),
            {"corpus": corpus("en"), "overlap": overlap("web")},
            "s3://a/overlap: is the overlap of source web, not of en; give the overlap of source en",
        ),
        (
            RECIPE.of_source("law"),
            {"corpus": sealed("corpus", {}, RECIPE, "other"), "overlap": overlap("law")},
            "compares another corpus of source law than the one that is given",
        ),
    ],
)  # fmt: skip
def test_those_of_others_are_refused_with_place_and_remedy(
    recipe: Recipe, inputs: dict[str, Manifest], said: str
) -> None:
    with pytest.raises(IntegrityError) as caught:
        refuse(recipe, **inputs)

    assert said in str(caught.value)


def test_a_stage_does_not_begin_with_the_corpus_of_another_source(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("salam")
    artifact.seal(tmp_path, kind="corpus", origin={}, recipe=RECIPE.of_source("web").model_dump(mode="json"))

    with pytest.raises(IntegrityError, match="is a corpus of language az, and that of source en is en"):
        planned_artifact(STAGES["encode"], RECIPE.of_source("en"), {"corpus": str(tmp_path)}, (), "out")
