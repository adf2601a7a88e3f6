"""`python -m anadil.overlap`: the entry point."""

from anadil.runtime.entry_point import main

raise SystemExit(main("overlap"))
