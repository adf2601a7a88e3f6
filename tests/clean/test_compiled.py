import subprocess
import sys

from anadil.clean.kernels.compiled import KERNELS


def test_every_module_with_compiled_code_is_in_the_digest() -> None:
    sources = {path.stem: path.read_text(encoding="utf-8") for path in KERNELS.room.glob("*.py")}

    assert {name for name, text in sources.items() if "@compiled" in text} <= set(KERNELS.modules)


def test_who_follows_a_run_loads_neither_the_compiler_nor_the_second_extractor() -> None:
    source = "import sys, anadil.clean.run; print({'numba', 'trafilatura'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"
