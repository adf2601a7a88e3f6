"""The recipe that a retraining derives from its champion and from new files."""

import shutil
from pathlib import Path

import pytest

from anadil.artifacts import artifact, storage
from anadil.core.errors import DataError, IntegrityError, RecipeError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.retrain.lineage import lineage_of
from anadil.retrain.new_files import compare_chats, compare_inputs
from anadil.retrain.resolve import Resolution, derived_recipe, resolve
from anadil.runtime.planned_artifact import planned_artifact
from tests.kit.retraining import (
    Registry,
    add_text,
    make_checkpoint,
    make_week,
    recipe_of,
    released,
    two_sources,
)


def first_week(registry: Registry, recipe: Recipe) -> dict[str, str]:
    uris = make_week(recipe)
    registry.set_champion(uris["model"])
    return uris


def one_week(root: Path, registry: Registry) -> tuple[Recipe, dict[str, str]]:
    """A recipe whose champion has read one file."""
    add_text(root / "text", "1.jsonl")
    recipe = recipe_of(root)
    return recipe, first_week(registry, recipe)


def week_of_two(root: Path, registry: Registry) -> tuple[Recipe, dict[str, str]]:
    """The same with a file of each of two sources."""
    for folder in ("az", "en"):
        add_text(root / folder, "1.jsonl", folder)
    recipe = two_sources(root)
    return recipe, first_week(registry, recipe)


def said_lines(resolution: Resolution) -> str:
    return "\n".join(resolution.lines)


def test_a_source_with_new_files_reads_them_alone_and_another_keeps_its_corpus(
    tmp_path: Path, registry: Registry
) -> None:
    recipe, uris = week_of_two(tmp_path, registry)
    new = add_text(tmp_path / "az", "2.jsonl")

    result = resolve(recipe)

    derived = result.recipe
    assert result.state == "new"
    assert derived.sources["web"].inputs == (new,)
    assert derived.sources["web"].clean.since == uris["corpus.web"]
    assert derived.retrain is not None
    assert derived.retrain.champion is not None
    assert set(derived.retrain.keeps) == {"tokenizer", "corpus.en"}
    artifacts = derived.retrain.champion.artifacts
    assert {
        word: uris[word] for word in ("tokens.web", "overlap.web", "overlap.en")
    }.items() <= artifacts.items()
    assert derived.pretrain.start_from == derived.evaluate.champion == uris["model"]
    assert "web: 1 new file, 1 file as before" in result.lines
    assert parse_recipe(derived.model_dump_json(), "derived") == derived


def test_tokens_are_those_that_the_model_was_trained_on(tmp_path: Path, registry: Registry) -> None:
    recipe, uris = week_of_two(tmp_path, registry)
    add_text(tmp_path / "az", "2.jsonl")
    made = Path(uris["tokens.web"])
    manifest = artifact.finished_manifest(str(made), "tokens")
    # Later ones of the same corpus: without the list, and behind another champion's text.
    without = {name: digest for name, digest in manifest.origin.items() if name != "input overlap"}
    for name, origin in (("a", without), ("b", {**manifest.origin, "input earlier corpus": "d"})):
        shutil.copytree(made, made.with_name(name))
        artifact.seal(made.with_name(name), kind="tokens", origin=origin)

    derived = resolve(recipe).recipe

    assert derived.retrain is not None
    assert derived.retrain.champion is not None
    assert derived.retrain.champion.artifacts["tokens.web"] == str(made)


def test_files_of_all_earlier_weeks_are_known(tmp_path: Path, registry: Registry) -> None:
    recipe, _ = one_week(tmp_path, registry)
    for week in (2, 3):
        add_text(tmp_path / "text", f"{week}.jsonl")
        uris = make_week(resolve(recipe).recipe)
        registry.set_champion(uris["model"], str(week))

    assert resolve(recipe).state == "nothing"
    new = add_text(tmp_path / "text", "4.jsonl")
    result = resolve(recipe)
    assert result.recipe.clean.inputs == (new,)
    assert result.recipe.clean.since == uris["corpus"]
    assert "1 new file, 3 files as before" in result.lines


def test_a_file_that_changed_moved_or_went_is_told_and_not_read(tmp_path: Path, registry: Registry) -> None:
    for name in ("changed", "moved", "gone"):
        add_text(tmp_path / "text", f"{name}.jsonl")
    recipe = recipe_of(tmp_path)
    first_week(registry, recipe)
    add_text(tmp_path / "text", "changed.jsonl", "other")
    (tmp_path / "text/moved.jsonl").rename(tmp_path / "text/elsewhere.jsonl")
    (tmp_path / "text/gone.jsonl").unlink()
    new = add_text(tmp_path / "text", "new.jsonl")

    result = resolve(recipe)

    assert result.recipe.clean.inputs == (new,)
    assert "changed since the champion read them, and not read again: 1 file (changed.jsonl)" in said_lines(
        result
    )
    assert (
        "left out, since the champion has read their bytes under other names: 1 file (elsewhere.jsonl)"
        in said_lines(result)
    )
    assert "not among the inputs any more: 2 files (gone.jsonl, moved.jsonl)" in said_lines(result)


def test_training_begins_with_the_plateau_only_where_its_checkpoint_is_there(tmp_path: Path) -> None:
    add_text(tmp_path / "text", "1.jsonl")
    phases = [{"trains": "embeddings", "steps": 5, "lr": 0.001}, {"trains": "all", "steps": 8, "lr": 0.001}]
    recipe = recipe_of(tmp_path, pretrain={"phases": phases, "sequence_length": 64, "schedule": "wsd"})
    first, second = (make_checkpoint(tmp_path / "work" / f"step-{step}") for step in (4, 12))
    points = [{"step": 4, "place": first}, {"step": 12, "place": second}]
    uris = make_week(recipe, points=points)
    add_text(tmp_path / "text", "2.jsonl")

    def start(**retrain: object) -> str | None:
        given = parse_recipe(recipe.model_dump_json(), "recipe", [f"retrain={retrain}"])
        lineage = lineage_of(released(uris["model"]))
        inputs, chats = compare_inputs(given, lineage.files), compare_chats(given, lineage.chats)
        return derived_recipe(given, lineage, inputs, chats).pretrain.start_from

    assert start() == second
    assert start(start="weights") == uris["model"]
    shutil.rmtree(second)
    # That of another phase trained other weights.
    assert start() == uris["model"]
    with pytest.raises(DataError, match="kept no checkpoint before its decay"):
        start(start="plateau")


def test_a_week_ends_with_a_mean_unless_the_recipe_says_how_training_ends(
    tmp_path: Path, registry: Registry
) -> None:
    recipe, _ = one_week(tmp_path, registry)
    add_text(tmp_path / "text", "2.jsonl")
    decays = parse_recipe(recipe.model_dump_json(exclude_unset=True), "recipe", ["pretrain.schedule=cosine"])

    result, said = resolve(recipe), resolve(decays)

    assert (result.recipe.pretrain.schedule, result.recipe.pretrain.average_last) == ("wsd", 8)
    assert "training ends with the mean of its last 8 checkpoints, or of as many as it has" in result.lines
    assert (said.recipe.pretrain.schedule, said.recipe.pretrain.average_last) == ("cosine", None)


def test_a_run_from_the_base_keeps_nothing_and_meets_the_champion(tmp_path: Path, registry: Registry) -> None:
    recipe, uris = one_week(tmp_path, registry)

    derived = resolve(recipe, from_base=True).recipe

    assert (derived.clean, derived.pretrain) == (recipe.clean, recipe.pretrain)
    assert derived.retrain is not None
    assert derived.retrain.champion is not None
    assert (derived.retrain.keeps, derived.retrain.champion.artifacts) == ((), {})
    assert derived.evaluate.champion == uris["model"]


def test_a_corpus_that_is_gone_is_told_with_the_remedy(tmp_path: Path, registry: Registry) -> None:
    recipe, uris = one_week(tmp_path, registry)
    shutil.rmtree(uris["corpus"])

    with pytest.raises(
        IntegrityError, match=r"its model was made from the corpus \w{16}, and none .*--from-base"
    ):
        resolve(recipe)


def test_the_first_champion_is_asked_for(tmp_path: Path, registry: Registry) -> None:
    recipe = recipe_of(tmp_path)

    with pytest.raises(
        DataError,
        match=r"anadil-az@champion: no champion in the registry at sqlite.*make the first one: anadil run 'my recipe.yaml' --set seed=1, "
        "then anadil promote MODEL",
    ):
        resolve(recipe, argument="'my recipe.yaml' --set seed=1")


def test_a_champion_that_is_gone_or_changed_is_refused(tmp_path: Path, registry: Registry) -> None:
    recipe, uris = one_week(tmp_path, registry)

    content = Path(uris["model"], "content")
    content.write_text(content.read_text().replace("pretrain", "pretrait"))
    with pytest.raises(
        IntegrityError,
        match=r"content: differs from its manifest; restore it, or go back .* by `anadil rollback`$",
    ):
        resolve(recipe)
    registry.set_champion(uris["model"], digest="1" * 64)
    with pytest.raises(
        IntegrityError, match=r"version 1, @champion\): its bytes differ from those that were promoted"
    ):
        resolve(recipe)
    shutil.rmtree(uris["model"])
    with pytest.raises(IntegrityError, match="the artifact was deleted, or is not visible on this host"):
        resolve(recipe)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("language", "tr", 'language "az" -> "tr"'),
        ("tokenizer.vocab_sizes", "[900]", r"tokenizer.vocab_sizes \[100000\] -> \[900\]"),
        ("pretrain.sequence_length", "128", "pretrain.sequence_length 64 -> 128"),
        ("clean.minhash_bands", "7", "clean.minhash_bands 14 -> 7"),
    ],
)
def test_a_recipe_that_leaves_nothing_to_keep_asks_for_a_run_from_the_base(
    tmp_path: Path, registry: Registry, key: str, value: str, reason: str
) -> None:
    add_text(tmp_path / "text", "1.jsonl")
    recipe = recipe_of(tmp_path, evaluate={"champion": "anadil-az@champion"})
    first_week(registry, recipe)
    changed = parse_recipe(recipe.model_dump_json(), "recipe", [f"{key}={value}"])

    with pytest.raises(RecipeError, match=rf"{reason}.*--from-base"):
        resolve(changed)
    assert resolve(changed, from_base=True).state == "new"


def test_what_follows_of_other_changes_is_said(tmp_path: Path, registry: Registry) -> None:
    recipe, _ = week_of_two(tmp_path, registry)
    changed = parse_recipe(
        recipe.model_dump_json(),
        "recipe",
        ["sources.web.clean.pii=true", "pretrain.weight_decay=0.2", "language=azj_Latn"],
    )

    unread = said_lines(resolve(changed))
    add_text(tmp_path / "az", "2.jsonl")
    said = said_lines(resolve(changed))

    assert "clean.pii false -> true (source web): the next new text follows it" in unread
    assert (
        "clean.pii false -> true (source web): new text is cleaned by it, and earlier text stays as it is"
        in said
    )
    assert "pretrain.weight_decay 0.1 -> 0.2: training on the new text follows it" in said
    assert "language" not in said


def test_a_source_that_is_new_or_left_out_is_said(tmp_path: Path, registry: Registry) -> None:
    recipe, _ = week_of_two(tmp_path, registry)
    books = {
        "web": recipe.sources["web"].model_dump(mode="json"),
        "books": {"inputs": [add_text(tmp_path, "b.jsonl")]},
    }
    phases = [{"trains": "all", "steps": 8, "lr": 0.001, "mix": {"web": 0.9, "books": 0.1}}]
    other = recipe_of(tmp_path, sources=books, pretrain={"phases": phases, "sequence_length": 64})

    result = resolve(other)

    assert "sources.books: is new; all of its text is" in result.lines
    assert (
        "sources.en: is left out; its text is not repeated, and the champion goes on knowing it"
        in result.lines
    )
    assert result.recipe.sources["books"].clean.since is None
    with pytest.raises(
        RecipeError, match="the champion was trained with sources, and the recipe is one without"
    ):
        resolve(recipe_of(tmp_path, clean={"inputs": [str(tmp_path / "b.jsonl")]}))


def test_a_champion_of_another_program_is_refused(tmp_path: Path, registry: Registry) -> None:
    add_text(tmp_path / "text", "1.jsonl")
    uris = first_week(registry, recipe_of(tmp_path))
    model = registry.aliases["anadil-az@champion"]
    registry.aliases["anadil-az@champion"] = type(model)(
        name=model.name, version="1", uri=uris["model"], digest="", kind=""
    )

    with pytest.raises(IntegrityError, match="another program registered it"):
        resolve(recipe_of(tmp_path))


@pytest.mark.parametrize("champion", ["none", "/models/one"])
def test_a_retraining_needs_a_registered_champion(tmp_path: Path, champion: str) -> None:
    recipe = recipe_of(tmp_path, evaluate={"champion": champion})

    with pytest.raises(
        RecipeError, match=f"evaluate.champion: {champion}: a retraining begins with a model of the registry"
    ):
        resolve(recipe)


def test_a_champion_that_was_finetuned_leads_to_its_model(tmp_path: Path, registry: Registry) -> None:
    add_text(tmp_path / "text", "1.jsonl")
    recipe = recipe_of(tmp_path)
    uris = make_week(recipe)
    model = artifact.read_manifest(uris["model"])
    assert model is not None
    folder = tmp_path / "store/adapter/1"
    folder.mkdir(parents=True)
    (folder / "adapter.safetensors").write_text("weights")
    artifact.seal(folder, kind="adapter", origin={"stage": "finetune", "input model": model.digest})
    registry.set_champion(str(folder))
    add_text(tmp_path / "text", "2.jsonl")

    derived = resolve(recipe).recipe

    assert derived.pretrain.start_from == uris["model"]
    assert derived.evaluate.champion == str(folder)


def test_the_champions_scores_are_those_of_its_own_run(tmp_path: Path, registry: Registry) -> None:
    recipe, uris = one_week(tmp_path, registry)
    model = artifact.finished_manifest(uris["model"], "model")
    for name, digest in (("own", model.digest), ("other", "0" * 64)):
        folder = tmp_path / "store/scores" / name
        folder.mkdir(parents=True)
        (folder / "scores.json").write_text(name)
        artifact.seal(folder, kind="scores", origin={"stage": "evaluate", "input model": digest})
    add_text(tmp_path / "text", "2.jsonl")

    derived = resolve(recipe).recipe
    assert derived.retrain is not None
    assert derived.retrain.champion is not None
    scores = str(tmp_path / "store/scores/own")
    planned = planned_artifact(
        STAGES["evaluate"], derived, {word: uris[word] for word in ("model", "corpus")}, (), None
    )

    assert derived.retrain.champion.artifacts["scores"] == scores
    assert planned.origin["input earlier scores"] == artifact.finished_manifest(scores, "scores").digest


def test_text_and_artifacts_may_lie_in_s3(tmp_path: Path, registry: Registry, bucket: str) -> None:
    def write(name: str) -> str:
        uri = f"{bucket}/text/{name}.jsonl"
        storage.store(uri).write(uri, name.encode())
        return uri

    write("1")
    inputs = {"inputs": [f"{bucket}/text/*.jsonl"]}
    recipe = recipe_of(tmp_path, clean=inputs, storage={"root": f"{bucket}/store"})
    uris = first_week(registry, recipe)
    assert resolve(recipe).state == "nothing"
    new = write("2")

    derived = resolve(recipe).recipe

    assert (derived.clean.inputs, derived.clean.since) == ((new,), uris["corpus"])
    assert uris["corpus"].startswith(f"{bucket}/store/corpus/")


def test_a_week_of_which_nothing_was_kept_is_no_part_of_the_lineage(
    tmp_path: Path, registry: Registry
) -> None:
    first = add_text(tmp_path / "text", "1.jsonl")
    recipe = recipe_of(tmp_path)
    uris = first_week(registry, recipe)
    second = add_text(tmp_path / "text", "2.jsonl")
    corpus = artifact.read_manifest(uris["corpus"])
    assert corpus is not None
    # The same content by other files: the digest of the corpus that it was added to.
    folder = tmp_path / "store/corpus/nothing"
    shutil.copytree(uris["corpus"], folder)
    origin = {"stage": "clean", "input clean.since": corpus.digest, f"file {second}": "0"}
    artifact.seal(folder, kind="corpus", origin=origin)

    lineage = lineage_of(released(uris["model"]))

    assert (lineage.places["corpus"], list(lineage.files[""])) == (uris["corpus"], [first])
    shutil.rmtree(uris["corpus"])
    assert len(lineage_of(released(uris["model"])).earlier[""]) == 1


def test_files_that_were_put_away_after_they_were_read_are_no_mistake(
    tmp_path: Path, registry: Registry
) -> None:
    path = add_text(tmp_path / "text", "1.jsonl")
    recipe = recipe_of(tmp_path)
    first_week(registry, recipe)
    Path(path).unlink()

    assert resolve(recipe).state == "nothing"


@pytest.mark.parametrize("pattern", ["text", "text/**/*.jsonl", "text/?.jsonl"])
def test_a_pattern_that_never_named_a_file_is_a_mistake_beside_one_whose_files_were_put_away(
    tmp_path: Path, registry: Registry, pattern: str
) -> None:
    path = add_text(tmp_path / "text", "1.jsonl")
    add_text(tmp_path / "other", "1.jsonl", "other")
    inputs = [f"{tmp_path}/other/1.jsonl", f"{tmp_path}/{pattern}"]
    recipe = recipe_of(tmp_path, clean={"inputs": inputs})
    first_week(registry, recipe)
    Path(path).unlink()
    Path(path).parent.rmdir()

    assert resolve(recipe).state == "nothing"

    wrong = recipe_of(tmp_path, clean={"inputs": [*inputs, f"{tmp_path}/texts/*.jsonl"]})
    with pytest.raises(DataError, match=r"no file matches '.*/texts/\*\.jsonl'"):
        resolve(wrong)
