import subprocess
import sys


def test_who_follows_a_run_loads_neither_the_compiler_nor_the_second_extractor() -> None:
    source = "import sys, anadil.clean.run; print({'numba', 'trafilatura'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"
