"""Modules that are loaded when something needs them."""

import gc
import sys
from pathlib import Path

import pytest

from anadil.core.modules import load_module


@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_looked_for_while_a_module_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"loaded_{fails}"
    (tmp_path / f"{name}.py").write_text(
        f"import gc\nwas_enabled = gc.isenabled()\nassert not {fails}\n", "utf-8"
    )
    before = gc.get_freeze_count()

    if fails:
        with pytest.raises(AssertionError):
            load_module(name)
    else:
        assert load_module(name).was_enabled is False
        assert gc.get_freeze_count() > before
        assert load_module(name) is sys.modules.pop(name)

    assert gc.isenabled()
