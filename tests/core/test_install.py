import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anadil.core import processor
from anadil.core.imports import load_module
from anadil.core.install import install, install_module
from tests.kit.marks import matrix

WHEEL = "/tmp/a b/anadil-0.1.0-py3-none-any.whl"
LACKS = "the image host:5000/anadil/tools:0.1.0 does not hold them"


@pytest.mark.parametrize(
    ("origin", "exists", "given"),
    [
        ({"url": "file:///src/anadil", "dir_info": {"editable": True}}, True, "--editable '/src/anadil[ray]'"),
        ({"url": "file:///src/anadil", "dir_info": {}}, True, "'/src/anadil[ray]'"),
        ({"url": "file:///tmp/a%20b/anadil-0.1.0-py3-none-any.whl", "archive_info": {}}, True, f"'{WHEEL}[ray]'"),
        ({"url": "https://git.example/a.git", "vcs_info": {"vcs": "git", "commit_id": "1f"}}, False,
         "'anadil[ray] @ git+https://git.example/a.git@1f'"),
        ({"url": "https://host/a.whl"}, False, "'anadil[ray] @ https://host/a.whl'"),
        ({"url": "file:///gone/anadil-0.1.0-py3-none-any.whl"}, False,
         "'./anadil-0.1.0-py3-none-any.whl[ray]', in the folder of that wheel"),
        (None, False, "'./anadil-0.1.0-py3-none-any.whl[ray]', in the folder of that wheel"),
    ],
)  # fmt: skip
def test_an_extra_comes_from_where_the_program_came(
    origin: dict[str, Any] | None, exists: bool, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANADIL_IMAGE", raising=False)
    text = json.dumps(origin) if origin else None
    monkeypatch.setattr(metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    monkeypatch.setattr(Path, "exists", lambda _: exists)
    monkeypatch.setattr("anadil.core.install.CHECKOUT", Path("/nowhere"))

    assert install("ray") == f"run {sys.executable} -m pip install {given}"


def test_a_remedy_leaves_setuptools_its_distutils() -> None:
    code = "from anadil.core.install import install; import distutils; install('ray'); import setuptools"

    subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code], check=True
    )


def test_nothing_advises_the_name_on_an_index() -> None:
    root = Path(__file__).parents[2]
    texts = [
        path
        for folder in ("components", "pipelines", "docs", "charts", "examples")
        for path in (root / folder).rglob("*.*")
    ]
    advice = re.compile(r"pip install [^\n]{0,40}\banadil\[")

    # A bare name goes into whichever environment the person's shell has.
    bare = re.compile(r"(?<!/)\bpip install [a-z\d{]")
    assert not [
        path for path in texts if path.suffix == ".py" and bare.search(path.read_text(encoding="utf-8"))
    ]

    found = [path for path in [*texts, root / "README.md"] if path.suffix in {".py", ".md", ".yaml", ".txt", ".ipynb"}
             if advice.search(path.read_text(encoding="utf-8"))]  # fmt: skip

    assert not found, "a package named anadil on an index is a stranger's: core.install names the source"


@pytest.mark.slow  # pip fetches what builds the package
@pytest.mark.parametrize(
    ("remedy", "installs"),
    [matrix(lambda: install("s3"), "anadil-"), (lambda: install_module("pymysql.cursors"), "pymysql-")],
)
def test_the_remedy_of_this_environment_installs(
    remedy: Callable[[], str], installs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANADIL_IMAGE", raising=False)
    command = remedy().removeprefix("run ") + " --dry-run --no-deps"

    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False,
                          env=os.environ | {"PIP_QUIET": "0"})  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert f"would install {installs}" in done.stdout.lower()


@pytest.mark.parametrize(
    ("extra", "remedy"),
    [
        ("pipelines", f"{LACKS}; run it in host:5000/anadil/pipelines:0.1.0"),
        ("ray", f"{LACKS}; run it in host:5000/anadil/clean-ray:0.1.0"),
        ("evaluate", f"{LACKS}; run it in host:5000/anadil/laptop:0.1.0"),
        (
            "watch",
            "no image holds them beside this command; run it on a machine whose anadil has the extra 'watch'",
        ),
        (
            "launch",
            "no image holds them beside this command; run it on a machine whose anadil has the extra 'launch'",
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
    assert processor.has_amx_products() is ("amx_bf16" in flags)


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
