import gc
import sys
from pathlib import Path

import pytest

from anadil.core import processor
from anadil.core.install import install
from anadil.core.modules import load_module


def test_a_machine_installs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANADIL_IMAGE", raising=False)

    assert install("evaluate") == "run pip install 'anadil[evaluate]'"


@pytest.mark.parametrize(
    ("extra", "remedy"),
    [
        (
            "pipelines",
            "the image host:5000/anadil/tools:0.1.0 does not hold them; run it in host:5000/anadil/pipelines:0.1.0",
        ),
        (
            "ray",
            "the image host:5000/anadil/tools:0.1.0 does not hold them; run it in host:5000/anadil/clean-ray:0.1.0",
        ),
        (
            "evaluate",
            "the image host:5000/anadil/tools:0.1.0 does not hold them; run it in host:5000/anadil/laptop:0.1.0",
        ),
        (
            "launch",
            "no image holds them beside this command; run it on a machine, after pip install 'anadil[launch]' there",
        ),
    ],
)
def test_an_image_names_who_has_the_packages(
    extra: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANADIL_IMAGE", "host:5000/anadil/tools:0.1.0")

    assert install(extra) == remedy


@pytest.mark.parametrize(
    ("flags", "most", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 sse2", None, True),
        ("flags\t\t: fpu amx_bf16 amx_tile", None, True),
        ("Features\t: fp asimd bf16 i8mm", None, True),
        ("flags\t\t: fpu avx2 avx512f", None, False),
        ("flags\t\t: fpu avx512_bf16x", None, False),
        ("bugs\t\t: avx512_bf16\nflags\t\t: fpu avx2", None, False),
        ("flags\t\t: avx512_bf16", "AVX2", False),
        ("flags\t\t: avx512_bf16", "avx512_core_bf16", True),
    ],
)
def test_a_processor_has_bf16_products_if_linux_says_so_and_onednn_may_use_them(
    flags: str, most: str | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\npower management:\n")
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.delenv(processor.MAX_ISA, raising=False)
    if most is not None:
        monkeypatch.setenv(processor.MAX_ISA, most)

    assert processor.has_bf16_products() is expected


def test_where_linux_tells_nothing_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "absent")
    monkeypatch.delenv(processor.MAX_ISA, raising=False)

    assert not processor.has_bf16_products()


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
