import json

import pytest

from anadil.core.errors import RecipeError
from anadil.core.stages import STAGES
from anadil.recipe.filter_rules import Rules
from anadil.recipe.load import load_recipe, parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import recipe_origin
from anadil.runtime.job import named_side_files
from anadil.text import parallel
from anadil.text.filter_rules import MODES
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

    sections = STAGES["clean"].keys
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

    sections = STAGES["clean"].keys
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


WRITTEN = """\
language: az
clean: {text_field: content}
sources:
  web: {inputs: [web.jsonl]}
  self: {written_by: base, tokens: 5M}
pretrain: {phases: [{trains: all, steps: 9, lr: 1.0e-3, mix: {web: .9, self: .1}}]}
"""


def test_a_base_writes_english_that_is_no_text_of_the_language_that_is_taught() -> None:
    recipe = parse_recipe(WRITTEN, "r.yaml")

    assert recipe.target_sources == ("web",)
    assert recipe.of_source("self").language == "en"
    # Also where the base writes in that language: it would teach itself what it knows.
    own = parse_recipe(WRITTEN, "r.yaml", ["sources.self.language=az"])
    assert own.target_sources == ("web",)
    assert own.of_source("self").language == "az"


def test_what_a_base_wrote_is_read_whole_whatever_the_recipe_says_of_files() -> None:
    clean = parse_recipe(WRITTEN, "r.yaml", ["clean.line_language=true"]).of_source("self").clean

    assert (clean.text_field, clean.line_language) == ("text", False)


def test_rules_of_form_count_what_a_base_wrote_and_drop_none_of_it() -> None:
    clean = parse_recipe(WRITTEN, "r.yaml", ["clean.modes={long: enforce}"]).of_source("self").clean

    assert {name for name in MODES if clean.modes.get(name) != "report"} >= {
        "empty", "language", "script", "long", "duplicate_ngrams", "duplicate_lines", "top_ngram", "ng_words",
    }  # fmt: skip
    assert {clean.modes[name] for name in ("short", "sentence_length", "word_length", "alpha")} == {"report"}
    bare = parse_recipe(WRITTEN, "r.yaml", ["clean.rules=none"]).of_source("self").clean
    assert (bare.rules, bare.modes) == ("none", {})


def test_a_recipe_without_such_a_source_has_no_key_of_it() -> None:
    plain = parse_recipe(
        WRITTEN.replace("written_by: base, tokens: 5M", "inputs: [en.jsonl], language: en"), "r.yaml"
    )
    written = parse_recipe(WRITTEN, "r.yaml")

    keys = [recipe_origin(each, STAGES["pretrain"].keys) for each in (plain, written)]
    more = {name: text for name, text in keys[1].items() if keys[0].get(name) != text}
    assert more == {
        "recipe sources.self.written_by": '"base"',
        "recipe sources.self.tokens": "5000000",
    }
    assert recipe_origin(plain, ["sources.written_by", "sources.tokens"]) == {}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{written_by: other, tokens: 5M}", "written_by: must be 'base' (got \"other\")"),
        (
            "{written_by: base, tokens: 5M, inputs: [a.txt]}",
            "written_by: base and inputs (a.txt) are both given; give the files a source of their own",
        ),
        ("{written_by: base}", "tokens is missing; say how much the base writes, such as `tokens: 5M`"),
        ("{written_by: base, tokens: 0}", "tokens: must be above 0 (got 0)"),
        ("{written_by: base, tokens: 999}", "tokens: 999 are too few for a corpus; ask for 1,000 or more"),
        ("{inputs: [a.txt], tokens: 5M}", "tokens is what the base writes; add `written_by: base`, or set `max_tokens`"),
        ("{written_by: base, tokens: 5M, clean: {since: /c}}", "clean.since adds files to a corpus, and a base writes its text anew"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_source_of_the_base_is_told_with_its_line(source: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(WRITTEN.replace("{written_by: base, tokens: 5M}", source), "r.yaml")

    assert said in str(caught.value)
    assert "line 5: sources.self" in str(caught.value)


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
        return [recipe_origin(recipe.of_source(name), STAGES["clean"].keys) for name in recipe.sources]

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


def without_web(text: str) -> str:
    return text.replace("  web: {inputs: [web.jsonl]}\n", "").replace("web: .9, ", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WRITTEN.replace("pretrain:", "  more: {written_by: base, tokens: 1M}\npretrain:"), r"sources\.self and sources\.more are all written by the base"),
        (without_web(WRITTEN), r"taught, az \(self: en, by the base\)"),
        (without_web(RECIPE), r"none of the sources is in the language .* az \(pairs: en \+"),
        ("language: en + az", "language: names two languages; parallel text is a source"),
        (RECIPE.replace("pairs: [en, az]", "language: python"), "text in no language, such as code, has `language: none`"),
    ],
)  # fmt: skip
def test_sources_that_teach_no_language_two_or_the_same_text_are_refused(text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        parse_recipe(text, "r.yaml")
