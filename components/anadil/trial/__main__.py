"""`python -m anadil.trial`: the entry point."""

from anadil.runtime.entry_point import main

raise SystemExit(main("trial"))
