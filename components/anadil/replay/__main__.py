"""`python -m anadil.replay`: the entry point."""

from anadil.runtime.entry_point import main

raise SystemExit(main("replay"))
