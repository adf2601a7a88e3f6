from pathlib import Path

import pytest

from anadil.core import processor


@pytest.mark.parametrize(
    ("flags", "most", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 sse2", None, True),
        ("flags\t\t: fpu amx_bf16 amx_tile", None, True),
        ("Features\t: fp asimd bf16 i8mm", None, True),
        ("flags\t\t: fpu avx2 avx512f", None, False),
        ("flags\t\t: fpu avx512_bf16x", None, False),
        ("bugs\t\t: avx512_bf16\nflags\t\t: fpu avx2", None, False),
        ("flags\t\t: avx512_bf16", "AVX512_CORE_VNNI", False),
        ("flags\t\t: avx512_bf16", "AVX2", False),
        ("flags\t\t: avx512_bf16", "avx512_core_bf16", True),
        ("flags\t\t: avx512_bf16", "AVX512_CORE_AMX", True),
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
