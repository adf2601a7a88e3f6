import pytest

from anadil.core.errors import RecipeError
from anadil.core.stages import STAGES
from anadil.recipe.filter_rules import Rules
from anadil.recipe.load import load_recipe, parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import recipe_origin
from anadil.runtime.job import named_side_files
from tests.kit.one_text import ONE_TEXT

THREE = """\
language: az
clean: {pii: true, rules: {min_words: 10}, url_lists: [/lists/adult]}
sources:
  web: {inputs: [web.jsonl]}
  law: {inputs: [law.jsonl], clean: {pii: false, rules: {max_words: 900}, url_lists: [/lists/law]}}
  en: {inputs: [en.jsonl], language: en, max_tokens: 500}
pretrain: {phases: [{trains: all, steps: 9, lr: 1.0e-3, mix: {web: .8, law: .1, en: .1}}]}
"""


def mistakes(text: str, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "r.yaml", overrides)
    return str(caught.value).splitlines()[1:]


def test_a_source_has_the_keys_of_clean_that_it_leaves_out() -> None:
    recipe = parse_recipe(THREE, "r.yaml")

    web, law, en = (recipe.of_source(name) for name in recipe.sources)
    assert (web.language, en.language) == ("az", "en")
    assert [each.clean.pii for each in (web, law, en)] == [True, False, True]
    assert law.clean.rules == Rules(min_words=10, max_words=900)
    assert en.clean.inputs == ("en.jsonl",)
    assert list(en.sources) == ["en"]


def test_the_recipe_of_a_source_cleans_as_the_plain_recipe_with_its_files() -> None:
    source = parse_recipe(THREE, "r.yaml").of_source("web")
    plain = parse_recipe("clean: {inputs: [web.jsonl], pii: true, rules: {min_words: 10}, url_lists: [/lists/adult]}", "p")  # fmt: skip

    sections = STAGES["clean"].sections
    assert recipe_origin(source, sections) == recipe_origin(plain, sections)


def test_a_key_of_a_source_can_be_set_on_the_command_line() -> None:
    recipe = parse_recipe(
        THREE,
        "r.yaml",
        ["sources.en.max_tokens=5", "sources.new.inputs=[n.txt]", "pretrain.phases.0.mix.new=.1"],
    )

    assert recipe.sources["en"].max_tokens == 5
    assert recipe.sources["new"].inputs == ("n.txt",)


def test_an_empty_table_of_sources_is_none() -> None:
    recipe = parse_recipe("clean: {inputs: [a.txt]}\nsources: {}", "r.yaml")

    assert recipe == parse_recipe("clean: {inputs: [a.txt]}", "r.yaml")


@pytest.mark.parametrize("code", ["az", "aze_Latn", "azj_Latn"])
def test_a_source_in_the_language_that_is_taught_may_spell_its_id_otherwise(code: str) -> None:
    recipe = parse_recipe(
        f"sources: {{web: {{inputs: [a.txt], language: {code}}}}}\npretrain: {{phases: [{{trains: all, steps: 9, lr: 1.0e-3, mix: {{web: 1}}}}]}}",
        "r.yaml",
    )

    assert recipe.target_sources == ("web",)


CODE = """\
clean: {pii: true, modes: {short: report}, ng_words: [/lists/ng.txt], rules: {min_words: 10}}
sources:
  web: {inputs: [web.jsonl]}
  code: {inputs: [code/*.jsonl], language: none, clean: {rules: none}}
pretrain: {phases: [{trains: all, steps: 9, lr: 1.0e-3, mix: {web: .9, code: .1}}]}
"""


@pytest.mark.parametrize("word", ["none", "None"])
def test_a_source_in_no_language_is_none_of_the_language_that_is_taught(word: str) -> None:
    recipe = parse_recipe(CODE.replace("language: none", f"language: {word}"), "r.yaml")

    assert recipe.target_sources == ("web",)
    code = recipe.of_source("code")
    assert (code.language_code, code.clean.line_language) == ("none", False)
    assert recipe.of_source("web").clean.line_language


def test_a_source_without_rules_takes_no_keys_that_only_rules_need() -> None:
    recipe = parse_recipe(CODE, "r.yaml")

    code, web = (recipe.of_source(name).clean for name in ("code", "web"))
    assert (code.rules, code.modes, code.ng_words, code.pii) == ("none", {}, (), True)
    assert (web.modes, web.rules) == ({"short": "report"}, Rules(min_words=10))
    # Pods and pipelines read what is written here.
    for text in (recipe.model_dump_json(), recipe.model_dump_json(exclude_unset=True)):
        assert parse_recipe(text, "r.json") == recipe


def test_a_source_may_have_rules_where_the_recipe_has_none() -> None:
    text = THREE.replace("{min_words: 10}", "none").replace("max_words: 900", "min_words: 3")

    recipe = parse_recipe(text, "r.yaml")

    assert [each.clean.rules for each in recipe.sources.values()] == ["none", Rules(min_words=3), "none"]


def test_only_a_recipe_without_rules_has_a_key_of_it() -> None:
    plain, bare = (parse_recipe(text, "r") for text in ("clean: {rules: {}}", "clean: {rules: none}"))

    sections = STAGES["clean"].sections
    assert recipe_origin(plain, sections) == recipe_origin(Recipe(), sections)
    assert recipe_origin(bare, sections) == recipe_origin(plain, sections) | {"recipe clean.rules": '"none"'}


def test_files_beside_the_data_are_those_of_all_sources() -> None:
    recipe = parse_recipe(THREE, "r.yaml")

    files = named_side_files(STAGES["clean"], recipe)

    assert files == {"clean.url_lists": ("/lists/adult", "/lists/law")}


def test_mistakes_of_sources_are_told_at_once_with_their_lines() -> None:
    text = """\
clean: {pii: maybe, modes: {short: nothing}}
sources:
  web: {inputs: [a.jsonl]}
  ../en: {inputs: [b.jsonl], language: xx}
  law: {inputs: [l.jsonl], max_tokens: 0, clean: {pii: perhaps}}
  old: {input: [c.jsonl]}
  bare:
"""

    lines = mistakes(text)

    expected = [
        'line 1: clean.pii: must be true or false (got "maybe")',
        "line 1: clean.modes.short: must be 'enforce' or 'report' (got \"nothing\")",
        "line 4: sources.../en: a source's name has a letter of a-z first",
        "line 4: sources.../en.language: no language has this id",
        'line 5: sources.law.clean.pii: must be true or false (got "perhaps")',
        "line 5: sources.law.max_tokens: must be above 0 (got 0)",
        "line 6: sources.old.input: unknown key; did you mean 'inputs'?",
        "line 7: sources.bare: must be a table of keys (got null)",
    ]
    assert len(lines) == len(expected)
    for line, begin in zip(lines, expected, strict=True):
        assert line.strip().startswith(begin)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sources: {web: {}}", "sources.web: inputs names no file; list the text of the source"),
        ("sources: {web: {inputs: [a], clean: {inputs: [b]}}}", "sources.web: clean.inputs: the files of a"),
        ("clean: {inputs: [k]}\nsources: {web: {inputs: [a]}}", "clean.inputs and sources are both given"),
        ("clean: {since: k}\nsources: {web: {inputs: [a]}}", "clean.since is one corpus; give it to the"),
        ("sources: {web: {inputs: [a, b]}, law: {inputs: [b]}}", "sources.web.inputs and sources.law.inputs"),
        ("language: none", "language: `none` is no language that can be taught; name the language here, and"),
        ("clean: {rules: nothing}", "line 1: clean.rules: must be 'none' (got \"nothing\")"),
        ("clean: {rules: none, modes: {short: report}}", "line 1: clean: rules: none lets no rule judge, so"),
        ("clean: {rules: none, ng_words: [a.txt], quality_model: m.bin}", "so ng_words and quality_model"),
        (
            "clean: {rules: none}\nsources: {web: {inputs: [a], clean: {modes: {short: report}}}}",
            "line 2: sources.web.clean: rules: none lets no rule judge",
        ),
        (
            "sources: {web: {inputs: [a], clean: {rules: {min_word: 3}}}}",
            "line 1: sources.web.clean.rules.min_word: unknown key; did you mean 'min_words'?",
        ),
        ("sources: {web: {inputs: [a], language: none}}", "none of the sources is in the language that is"),
        ("sources: {web: {inputs: [a], language: en}}", "none of the sources is in the language that is"),
    ],
)
def test_a_mistake_says_its_place_and_its_remedy(text: str, said: str) -> None:
    [line] = mistakes(text)

    assert said in line


def test_mistakes_between_sources_are_told_together() -> None:
    [line] = mistakes("clean: {inputs: [k]}\nsources: {web: {inputs: [a], language: en}, law: {inputs: [a], language: tr}}")  # fmt: skip

    for part in ("both given", "both name a;", "none of the sources"):
        assert part in line


def test_an_unknown_source_is_named_with_the_nearest() -> None:
    recipe = parse_recipe(THREE, "r.yaml")

    with pytest.raises(RecipeError, match=r"none is called 'wbe' \(web, law, en\); did you mean 'web'\?"):
        recipe.of_source("wbe")


@pytest.mark.parametrize("name", ["smoke", "azerbaijani-1b"])
def test_a_recipe_without_sources_has_no_key_of_them(name: str) -> None:
    recipe = load_recipe(name, [ONE_TEXT])

    keys = recipe_origin(recipe, ("language", "clean", "sources", "pretrain"))

    assert not any(key.startswith("recipe sources") for key in keys)


@pytest.mark.parametrize(
    ("written", "tokens"), [("500M", 500_000_000), ("1.5B", 1_500_000_000), ("20K", 20_000), ("7", 7)]
)
def test_tokens_of_a_source_are_written_as_people_say_them(written: str, tokens: int) -> None:
    recipe = parse_recipe(THREE, "r.yaml", [f"sources.web.max_tokens={written}"])

    assert recipe.sources["web"].max_tokens == tokens


@pytest.mark.parametrize("written", ["0M", "many", "5 M", "-1", "500m"])
def test_tokens_of_a_source_that_are_no_number_are_refused_with_their_place(written: str) -> None:
    [mistake] = mistakes(THREE, f"sources.web.max_tokens={written}")

    assert "sources.web.max_tokens: must be" in mistake
