"""`python -m anadil.encode`: the entry point."""

import sys

from anadil.runtime.entry_point import main

sys.exit(main("encode"))
