"""The section `merge`."""

import pytest

from anadil.core.errors import RecipeError
from anadil.recipe.load import parse_recipe
from anadil.recipe.merge import Merge
from anadil.recipe.sections import Recipe

VECTOR = "{model: a/instruct, minus: a/base}"


def merge_of(text: str) -> Merge:
    merge = parse_recipe(f"clean: {{inputs: [a.txt]}}\nmerge: {text}", "r.yaml").merge
    assert merge is not None
    return merge


def test_a_recipe_without_the_section_merges_nothing() -> None:
    assert Recipe().merge is None


@pytest.mark.parametrize(
    ("text", "is_auto"),
    [
        ("{base_share: 0.25}", False),
        (f"{{add: [{VECTOR}]}}", False),
        ("{base_share: auto}", True),
        ("{add: [{model: a/instruct, minus: a/base, weight: auto}]}", True),
    ],
)
def test_a_share_or_a_weight_may_be_left_to_measuring(text: str, is_auto: bool) -> None:
    assert merge_of(text).is_auto is is_auto


def test_models_are_named_once_each() -> None:
    other = "{model: a/code, minus: a/base, weight: 0.5}"

    assert merge_of(f"{{add: [{VECTOR}, {other}]}}").models == ("a/instruct", "a/base", "a/code")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "merge: merges nothing; set a base_share above 0 or add"),
        ("{base_share: 0, add: []}", "merges nothing"),
        ("{base_share: 1.5}", "merge.base_share: must be at most 1 (got 1.5)"),
        ("{base_share: atuo}", "merge.base_share: must be 'auto' (got \"atuo\")"),
        ("{base_share: '0.5'}", 'merge.base_share: must be a number (got "0.5")'),
        ("{base_share: .nan}", "merge.base_share: must be a number (got "),
        ("{base_shares: .5}", "merge.base_shares: unknown key; did you mean 'base_share'?"),
        ("{average_last: 2}", "merge.average_last: unknown key; did you mean 'pretrain.average_last'?"),
        ("{add: [{model: a/b}]}", "merge.add.0.minus: is missing"),
        ("{add: [{model: a/b, minus: a/b}]}", "model and minus are both a/b"),
        ("{add: [{model: a/b, minus: a/c, weight: 0}]}", "merge.add.0.weight: must be above 0 (got 0)"),
        (f"{{add: [{{model: {Recipe().base.model}, minus: a/b}}]}}", "takes away what a/b learnt; swap"),
        (f"{{add: [{VECTOR}, {VECTOR}]}}", "the difference of a/instruct and a/base is named twice"),
    ],
)
def test_a_mistake_names_key_value_and_remedy(text: str, words: str) -> None:
    with pytest.raises(RecipeError) as raised:
        merge_of(text)

    assert words in str(raised.value)
