"""Size of a run's text: of its finished artifacts, else of its files."""

import json
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.core.errors import RecipeError
from anadil.core.stages import STAGES
from anadil.estimate.text_use import TextSize
from anadil.preflight import checks
from anadil.preflight.text_size import inspect_text, text_of
from anadil.recipe.pretrain import Pretrain
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.check import DOCTOR, RUN, SUBMIT, CheckResult, PlannedRun
from anadil.runtime.job import external_files, external_side_files
from anadil.runtime.planned_artifact import place_of
from anadil.tokens.tensor_file import size_of
from anadil.tokens.tokens_file import BlockFacts, ShardFacts, TokensFacts


@pytest.fixture
def mixture(tmp_path: Path) -> Recipe:
    """Two sources of 3 MB and 300 kB."""
    for name, size in (("web", 3_000_000), ("en", 300_000)):
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n" * size)
    return Recipe.model_validate({
        "language": "az",
        "base": {"model": "tiny"},
        "storage": {"root": str(tmp_path / "root")},
        "sources": {
            "web": {"inputs": [str(tmp_path / "web*.jsonl")]},
            "en": {"inputs": [str(tmp_path / "en.jsonl")], "language": "en", "max_tokens": 70_000},
        },
        "pretrain": {
            "phases": [{"trains": "all", "steps": 1_000, "lr": 1e-3, "mix": {"web": 0.5, "en": 0.5}}],
            "batch_size": 4,
            "sequence_length": 500,
        },
    })  # fmt: skip


def sealed(
    recipe: Recipe,
    name: str,
    inputs: dict[str, Manifest],
    files: dict[str, bytes],
    records: dict[str, int] | None = None,
) -> Manifest:
    """An artifact in its place."""
    stage = STAGES[name]
    origin = stage_origin(
        stage, recipe, inputs, external_files(stage, recipe), external_side_files(stage, recipe)
    )
    folder = Path(place_of(stage, str(recipe.storage.root), origin))
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return artifact.seal(folder, kind=stage.writes, origin=origin, records=records or {})


def corpus(recipe: Recipe, num_bytes: int) -> Manifest:
    stats = json.dumps({"bytes_out": num_bytes, "words_out": num_bytes // 10}).encode()
    return sealed(recipe, "clean", {}, {"stats.json": stats}, records={"train": 90, "heldout": 10})


def tokens(recipe: Recipe, inputs: dict[str, Manifest], count: int) -> Manifest:
    """Tokens of one document."""
    sequences = count // 500
    shard = ShardFacts(
        file="train/part-00000.safetensors", documents=1, tokens=count + 1, bytes=4 * count, crc32=0
    )
    block = BlockFacts(
        file="blocks/block-00000.safetensors", first_shard=0, num_shards=1, pieces=sequences, sequences=sequences,
        targets=count, positions=count, crc32=0,
    )  # fmt: skip
    facts = TokensFacts(
        language="az", corpus="", tokenizer="", begin=0, end=1, bos=0, vocabulary=9, sequence_length=500, stream="",
        documents=1, tokens=count + 1, bytes=4 * count, sequences=sequences, targets=count, left_out={},
        sample=("", ()), train=(shard,), heldout=(), blocks=(block,),
    )  # fmt: skip
    place = Path(str(recipe.storage.root)).parent / "facts"
    place.mkdir()
    facts.write(place)
    files = {each.file: bytes(size_of(each.num_bytes)) for each in (shard, block)}
    return sealed(recipe, "encode", inputs, files | {"tokens.json": (place / "tokens.json").read_bytes()})


def test_files_say_it_where_nothing_is_finished(mixture: Recipe) -> None:
    assert text_of(mixture) == {
        "web": TextSize(basis="files", tokens=1_000_000, text_bytes=3_000_000),
        "en": TextSize(basis="files", tokens=70_000, text_bytes=300_000),  # `max_tokens`
    }


def test_a_corpus_of_this_recipe_says_it_better(mixture: Recipe) -> None:
    corpus(mixture.of_source("web"), 1_000_000)

    found = text_of(mixture)

    assert found["web"] == TextSize(
        basis="corpus", tokens=300_000, text_bytes=900_000, words=90_000, documents=90
    )
    assert found["en"].basis == "files"


@pytest.mark.parametrize("change", ["rules", "files"])
def test_a_corpus_of_another_recipe_says_nothing(mixture: Recipe, tmp_path: Path, change: str) -> None:
    corpus(mixture.of_source("web"), 1_000_000)
    data = mixture.model_dump(exclude_unset=True)
    if change == "rules":
        data["sources"]["web"]["clean"] = {"pii": True}
    else:
        (tmp_path / "web-2.jsonl").write_bytes(b"\n")

    assert text_of(Recipe.model_validate(data))["web"].basis == "files"


def test_tokens_of_this_recipe_say_it_best(tmp_path: Path, mixture: Recipe) -> None:
    plain = Recipe(
        clean=mixture.clean.model_copy(update={"inputs": (str(tmp_path / "web.jsonl"),)}),
        base=mixture.base, storage=mixture.storage,
        pretrain=Pretrain(sequence_length=500),
    )  # fmt: skip
    made = corpus(plain, 1_000_000)
    tokenizer = sealed(plain, "tokenizer", {"corpus": made}, {"tokenizer.json": b"{}"})
    tokens(plain, {"corpus": made, "tokenizer": tokenizer}, 200_000)

    assert text_of(plain) == {
        "": TextSize(
            basis="tokens", tokens=200_000, text_bytes=800_000, words=90_000, documents=1, sequences=400
        )
    }


def test_files_that_cannot_be_seen_are_not_counted(mixture: Recipe, tmp_path: Path) -> None:
    (tmp_path / "en.jsonl").unlink()

    assert text_of(mixture) == {}
    assert [each.status for each in inspect_text(mixture)] == ["skipped"]


def of_steps(recipe: Recipe, steps: int) -> Recipe:
    phase = recipe.pretrain.phases[0].model_copy(update={"steps": steps})
    return recipe.model_copy(update={"pretrain": recipe.pretrain.model_copy(update={"phases": (phase,)})})


def test_doctor_warns_where_a_source_runs_out_and_fails_where_all_do(mixture: Recipe, tmp_path: Path) -> None:
    def report(steps: int) -> list[CheckResult]:
        recipe = of_steps(mixture, steps)
        [check] = [each for each in checks.CHECKS if each.name == "epochs"]
        return check.results(PlannedRun(by=DOCTOR, recipe=recipe, work=tmp_path))

    web, en = report(1_000)
    [failure] = report(1_000_000)

    assert (web.status, web.remedy) == ("passed", "")
    assert "after 4 (max_epochs), from step 281 on, its share goes to web" in en.detail
    assert en.remedy == "lower its share, raise sources.en.max_epochs, or give more text"
    assert failure.status == "failed"
    assert "all its sources are used up after 2,140 of 1,000,000 steps" in failure.detail


@pytest.mark.parametrize("command", [RUN, SUBMIT])
def test_a_run_whose_sources_all_run_out_ends_before_it_begins(mixture: Recipe, command: str) -> None:
    [check] = [each for each in checks.CHECKS if each.name == "epochs" and command in each.by]

    with pytest.raises(RecipeError, match="make the phases 2,140 steps") as error:
        list(check.function(PlannedRun(by=command, recipe=of_steps(mixture, 1_000_000))))
    assert error.value.exit_code == 2


def test_pairs_are_counted_in_both_directions(tmp_path: Path) -> None:
    for name in ("web", "pairs"):
        (tmp_path / f"{name}.tsv").write_bytes(b"\n" * 300_000)
    data = {
        "storage": {"root": str(tmp_path / "root")},
        "sources": {
            "web": {"inputs": [str(tmp_path / "web.tsv")]},
            "pairs": {"inputs": [str(tmp_path / "pairs.tsv")], "pairs": ["en", "az"]},
        },
        "pretrain": {"phases": [{"trains": "all", "steps": 9, "lr": 1e-3, "mix": {"web": 0.5, "pairs": 0.5}}]},
    }  # fmt: skip
    recipe = Recipe.model_validate(data)

    sizes = text_of(recipe)

    assert sizes["pairs"].tokens == 2 * sizes["web"].tokens
