import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anadil.core import strict_yaml
from anadil.core.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        (".5", 0.5),
        ("-3.", -3.0),
        ("no", "no"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("12:30:45", "12:30:45"),
        ("1_000", "1_000"),
        ("2026-11-21", "2026-11-21"),
        ("true", True),
        ("~", None),
        ("", None),
        (".inf", ".inf"),
    ],
)
def test_a_plain_scalar_is_read_by_the_rules_of_yaml_1_2(text: str, value: object) -> None:
    read, _ = strict_yaml.parse_yaml(f"key: {text}", "r.yaml")

    assert read == {"key": value}
    assert isinstance(read, dict)
    assert type(read["key"]) is type(value)


@pytest.mark.parametrize("text", ["'1e-4'", '"no"', "'12'", "'~'"])
def test_a_quoted_scalar_is_text(text: str) -> None:
    read, _ = strict_yaml.parse_yaml(f"key: {text}", "r.yaml")

    assert read == {"key": text[1:-1]}


def test_each_path_knows_its_line() -> None:
    _, lines = strict_yaml.parse_yaml("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n", "r.yaml")

    assert lines["a",] == 1
    assert lines["a", "b"] == 2
    assert lines["a", "c", 1] == 5
    assert lines["a", "c", 1, "y"] == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "r.yaml: line 3: key 'a' is given twice; remove one"),
        ("a: &x [1]\nb: *x\n", "r.yaml: line 2: alias *x; write the value out"),
        ("a: !!python/object:os.system 1\n", "r.yaml: line 1: tag tag:yaml.org,2002:python/object:os.system"),
        ("a: !!str 1\n", "quote a value that is meant as text"),
        ("? [a, b]\n: 1\n", "r.yaml: line 1: a key is a word, not a list or a table"),
        ("a: [1", "r.yaml: not YAML: while parsing a flow sequence"),
        ("a: 1\n---\nb: 2\n", "r.yaml: not YAML: expected a single document"),
        ("a: \x07", "r.yaml: not YAML:"),
        ("a: \udcff", "r.yaml: not YAML:"),
        ("[" * 60 + "]" * 60, "r.yaml: line 1: nested too deep (at most 50 levels)"),
        ("[" * 300_000, "r.yaml: line 1: nested too deep (at most 50 levels)"),
        ("a" * 1_000_001, "r.yaml: larger than 1,000,000 bytes"),
    ],
)
def test_what_surprises_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        strict_yaml.parse_yaml(text, "r.yaml")

    assert message in str(caught.value)


def test_a_number_too_long_for_python_is_a_word() -> None:
    digits = "9" * 5_000

    assert strict_yaml.scalar(digits) == digits
    assert strict_yaml.scalar(f"0x{digits}") == f"0x{digits}"


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_as_a_recipe_error(text: str) -> None:
    with contextlib.suppress(RecipeError):
        strict_yaml.parse_yaml(text, "r.yaml")


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_written_by_python_is_read_as_itself(number: float) -> None:
    assert strict_yaml.scalar(repr(number)) == number
