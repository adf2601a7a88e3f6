import json

import pytest

from anadil.core.json_text import MAX_DEPTH, TooDeepError, parse_json, parse_next, refuse_deep


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "[" * 200_000 + "]" * 200_000,
        '{"a":' * 200_000 + "1" + "}" * 200_000,
        '[{"a":' * 60 + "1" + "}]" * 60,
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    ],
)
def test_what_nests_without_end_is_no_json(text: str) -> None:
    with pytest.raises(TooDeepError, match="nested too deep"):
        parse_json(text)
    with pytest.raises(TooDeepError):
        parse_json(text.encode())
    with pytest.raises(TooDeepError):
        parse_next(f"  {text} ", 2)


def test_a_wide_value_and_a_text_of_brackets_are_read() -> None:
    value = [[{"a": "[" * 1_000}] for _ in range(1_000)]
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH

    assert parse_json(json.dumps(value)) == value
    assert parse_next(json.dumps(value) + " rest", 0)[0] == value
    assert json.dumps(parse_json(deepest)) == deepest


def test_a_value_that_holds_itself_nests_without_end() -> None:
    itself: list[object] = []
    itself += [itself, itself, {"again": itself}]

    with pytest.raises(TooDeepError):
        refuse_deep(itself)


def test_a_key_given_twice_is_refused_only_where_asked() -> None:
    assert parse_json('{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(ValueError, match="key 'a' is given twice"):
        parse_json('[{"a": 1, "a": 2}]', no_twins=True)
