"""The guide names keys that exist, and all of them."""

import re
from pathlib import Path

import pytest

from anadil.cli.main import STAGE_VERBS, main
from anadil.recipe.clean import Clean
from anadil.recipe.filter_rules import Rules

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "clean.md").read_text(encoding="utf-8")


def test_the_limits_of_the_guide_are_keys_of_the_recipe() -> None:
    table = GUIDE[GUIDE.index("| rule | limit") : GUIDE.index("## Settings")]

    assert set(re.findall(r"`((?:min|max)_[a-z0-9_]+)`", table)) <= set(Rules.model_fields)


def test_every_setting_stands_in_the_guide() -> None:
    table = GUIDE[GUIDE.index("## Settings") : GUIDE.index("## What comes out")]

    assert [key for key in Clean.model_fields if f"`clean.{key}`" not in table] == []


def test_the_help_of_the_stage_names_the_commands_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["clean", "--help"])

    assert f"anadil clean {'|'.join(STAGE_VERBS['clean'])}" in " ".join(capsys.readouterr().out.split())
