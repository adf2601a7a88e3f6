import pytest

from anadil.core.errors import RecipeError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.runtime.cache_key import recipe_origin
from anadil.text.filter_rules import MODES

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

    keys = [recipe_origin(each, STAGES["pretrain"].sections) for each in (plain, written)]
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


def test_two_sources_of_the_base_would_hold_the_same_text() -> None:
    with pytest.raises(RecipeError, match=r"sources\.self and sources\.more are all written by the base"):
        parse_recipe(WRITTEN, "r.yaml", ["sources.more={written_by: base, tokens: 1M}"])


def test_a_recipe_of_nothing_but_what_a_base_writes_teaches_no_language() -> None:
    text = WRITTEN.replace("  web: {inputs: [web.jsonl]}\n", "").replace("web: .9, ", "")

    with pytest.raises(RecipeError, match=r"taught, az \(self: en, by the base\)"):
        parse_recipe(text, "r.yaml")
