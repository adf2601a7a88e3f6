"""`python -m anadil.release`: the entry point."""

from anadil.runtime.entry_point import main

raise SystemExit(main("release"))
