"""`python -m anadil.merge`: the entry point."""

from anadil.runtime.entry_point import main

raise SystemExit(main("merge"))
