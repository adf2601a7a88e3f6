"""A base that cannot be taught chats is refused before any stage runs."""

from pathlib import Path

import pytest

from anadil.cli import main

RECIPE = """
base: {{model: {folder}}}
clean: {{inputs: [raw.jsonl]}}
finetune: {{inputs: [chats.jsonl]}}
"""


def checked(folder: Path, family: str, kind: str, template: str | None, *, chats: bool = True) -> int:
    from tests.finetune.test_chat_format import tokenizer_of, trl_template  # loads transformers
    from tests.kit.families import make_family

    base = make_family(folder / "base", kind)
    written = template if template and "{" in template else template and trl_template(template)
    tokenizer_of(family, written).save_pretrained(base)
    recipe = folder / "recipe.yaml"
    text = RECIPE.format(folder=base)
    recipe.write_text(
        text if chats else text.replace("inputs: [chats.jsonl]", "inputs: []"), encoding="utf-8"
    )
    return main.main(["recipe", "check", str(recipe)])


@pytest.mark.parametrize(
    ("family", "kind", "own"), [("qwen", "qwen2", "qwen2_5"), ("gemma", "gemma3_text", None)]
)
def test_a_base_with_a_proven_template_passes(
    tmp_path: Path, family: str, kind: str, own: str | None
) -> None:
    assert checked(tmp_path, family, kind, own) == 0


def test_a_base_without_any_is_refused_at_recipe_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = checked(tmp_path, "phi", "llama", None)

    told = capsys.readouterr().err
    assert code == 3
    assert "base.model" in told
    assert "its tokenizer has no <|start_header_id|>, <|end_header_id|>, <|eot_id|>" in told
    assert "leave finetune.inputs out" in told


def test_without_chats_it_is_a_base_as_any_other(tmp_path: Path) -> None:
    assert checked(tmp_path, "phi", "llama", None, chats=False) == 0


def test_what_a_template_raises_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path, "phi", "llama", "{{ messages[9].content / 0 }}{% set x = range(999999) %}") == 3
    assert "cannot be rendered (" in capsys.readouterr().err
