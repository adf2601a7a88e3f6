"""A base that cannot be taught chats is refused before any stage runs."""

import json
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

    base = make_family(folder / "base", kind, vocab_size=512)
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


def test_a_tokenizer_that_the_strategies_cannot_change_is_refused_without_chats_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.finetune.test_chat_format import tokenizer_of
    from tests.kit.families import make_family

    base = make_family(tmp_path / "base", "llama")
    tokenizer_of("phi", None).save_pretrained(base)
    content = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["byte_fallback"] = True
    (base / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"base: {{model: {base}}}\nclean: {{inputs: [raw.jsonl]}}\n", encoding="utf-8")

    assert main.main(["recipe", "check", str(recipe)]) == 3
    assert "set tokenizer.strategies to [base]" in capsys.readouterr().err


def test_what_a_template_raises_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path, "phi", "llama", "{{ messages[9].content / 0 }}{% set x = range(999999) %}") == 3
    assert "cannot be rendered (" in capsys.readouterr().err
