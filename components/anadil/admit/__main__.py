"""`python -m anadil.admit`: the entry point."""

from anadil.runtime.entry_point import main

raise SystemExit(main("admit"))
