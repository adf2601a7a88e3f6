"""`python -m tests.golden` (`make golden`): write the files that tests compare with."""

import sys

from tests.golden.render import GOLDEN

for path, render in GOLDEN.items():
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{path}\n")
