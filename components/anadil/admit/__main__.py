"""`python -m anadil.admit`: the entry point."""

import sys

from anadil.runtime.entry_point import main

sys.exit(main("admit"))
