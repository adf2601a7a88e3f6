"""Artifacts that are given under the name of a source, and are another's."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.core.errors import IntegrityError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.planned_artifact import planned_artifact, refuse_other_sources

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
