"""A plan for text that cannot support the vocabulary that the recipe names."""

import pytest

from anadil.plan.instances import this_machine
from anadil.plan.plan import build_plan, choose_layout, request_for
from anadil.plan.text_use import TextSize
from anadil.recipe.load import parse_recipe

RECIPE = """\
base: {model: tiny}
tokenizer: {strategies: [base, extend], vocab_sizes: [100000]}
clean: {inputs: [a.jsonl]}
"""


@pytest.mark.parametrize(
    ("tokens", "settings", "said"),
    [
        (600_000, [], "The text uses about 600 tokens 100 times (assumption: Zipf's law), and 100,000 are planned for."),
        (600_000, ["tokenizer.min_uses=10"], "The text uses about 6,000 tokens 10 times"),
        (600_000, ["tokenizer.vocab_sizes=[500]"], ""),
        (600_000, ["tokenizer.strategies=[base]"], ""),
        (200_000_000, [], ""),
    ],
)  # fmt: skip
def test_a_plan_says_if_the_text_is_too_small_for_its_vocabulary(
    tokens: int, settings: list[str], said: str
) -> None:
    text = {"": TextSize(basis="given", tokens=tokens)}
    request = request_for("own", parse_recipe(RECIPE, "r.yaml", settings), this_machine(), 1, text)

    plan = build_plan(request, choose_layout(request))

    sentences = [each for each in plan.assumptions if "Zipf" in each]
    assert [each[: len(said)] for each in sentences] == ([said] if said else [])
