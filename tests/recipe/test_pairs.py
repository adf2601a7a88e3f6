"""A source of parallel text in the recipe: its languages, its keys, and mistakes."""

import json

import pytest

from anadil.core.errors import RecipeError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.runtime.cache_key import recipe_origin
from anadil.text import parallel

PHASES = "pretrain: {phases: [{trains: all, steps: 9, lr: 1.0e-3, mix: {web: .9, pairs: .1}}]}"
RECIPE = f"""\
language: az
clean: {{pii: true, text_field: body, modes: {{short: report}}, rules: {{min_words: 9}}, line_language: false}}
sources:
  web: {{inputs: [web.jsonl]}}
  pairs: {{inputs: [en-az.tsv], pairs: [en, az]}}
{PHASES}
"""


def test_pairs_are_cleaned_in_both_languages_by_no_rule_of_documents() -> None:
    recipe = parse_recipe(RECIPE, "r.yaml")

    pairs = recipe.of_source("pairs")
    assert (pairs.language, pairs.language_code) == ("en + az", "en-az")
    assert (pairs.clean.rules, pairs.clean.text_field, pairs.clean.pii) == ("none", "text", True)
    assert pairs.clean.inputs == ("en-az.tsv",)
    # Pods and pipelines read what is written here.
    assert parse_recipe(recipe.model_dump_json(), "r.json") == recipe


def test_pairs_are_no_text_of_the_language_that_is_taught() -> None:
    recipe = parse_recipe(RECIPE, "r.yaml")

    assert recipe.target_sources == ("web",)
    assert [recipe.sources[name].directions for name in recipe.sources] == [1, 2]


def test_languages_and_template_of_pairs_are_part_of_their_key_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def origins() -> list[dict[str, str]]:
        recipe = parse_recipe(RECIPE, "r.yaml")
        return [recipe_origin(recipe.of_source(name), STAGES["clean"].sections) for name in recipe.sources]

    web, pairs = origins()
    monkeypatch.setattr("anadil.runtime.cache_key.TEMPLATE_DIGEST", "another")
    web_then, pairs_then = origins()

    assert web == web_then
    assert json.loads(pairs["recipe language"]) == f"en + az in template {parallel.TEMPLATE_DIGEST}"
    assert json.loads(pairs_then["recipe language"]) == "en + az in template another"


def test_the_order_of_the_sides_is_part_of_the_key() -> None:
    there = parse_recipe(RECIPE, "r.yaml").of_source("pairs")
    back = parse_recipe(RECIPE.replace("[en, az]", "[az, en]"), "r.yaml").of_source("pairs")

    assert recipe_origin(there, ("language",)) != recipe_origin(back, ("language",))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("pairs: [en, en]", "pairs ['en', 'en'] names one language twice; name that of each side"),
        ("pairs: [az, aze_Latn]", "pairs ['az', 'aze_Latn'] names one language twice"),
        ("pairs: [en]", "sources.pairs.pairs"),
        ("pairs: [en, az, tr]", "sources.pairs.pairs"),
        ("pairs: [en, none]", "`none` is no language that a side of pairs can be in; name the language"),
        ("pairs: [en, xx]", "no language has this id"),
        ("pairs: [en, az + tr]", "names two languages; parallel text is a source with `pairs: [en, az]`"),
        ("language: en + az", "names two languages; parallel text is a source with `pairs: [en, az]`"),
        ("pairs: [en, az], language: az", "pairs and language are both given; pairs ['en', 'az'] says the languages"),
        (
            "pairs: [en, az], clean: {text_field: en, rules: {min_words: 3}}",
            "clean.rules, clean.text_field would decide nothing: rules and fields are those of documents",
        ),
    ],
)  # fmt: skip
def test_a_mistake_of_pairs_is_refused_with_its_remedy(source: str, said: str) -> None:
    text = RECIPE.replace("pairs: [en, az]", source)

    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "r.yaml")

    [line] = str(caught.value).splitlines()[1:]
    assert line.strip().startswith("line 5: sources.pairs")
    assert said in line


def test_a_recipe_needs_other_text_than_pairs() -> None:
    text = RECIPE.replace("  web: {inputs: [web.jsonl]}\n", "").replace("web: .9, ", "")

    with pytest.raises(RecipeError, match=r"none of the sources is in the language .* az \(pairs: en \+"):
        parse_recipe(text, "r.yaml")


def test_two_languages_are_not_taught_at_once() -> None:
    with pytest.raises(RecipeError, match="language: names two languages; parallel text is a source"):
        parse_recipe("language: en + az", "r.yaml")


def test_an_unknown_language_of_a_source_says_what_text_in_none_has() -> None:
    text = RECIPE.replace("pairs: [en, az]", "language: python")

    with pytest.raises(RecipeError, match="text in no language, such as code, has `language: none`"):
        parse_recipe(text, "r.yaml")
