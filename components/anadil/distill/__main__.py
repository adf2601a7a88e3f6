"""`python -m anadil.distill`: the entry point."""

from anadil.runtime.entry_point import main

raise SystemExit(main("distill"))
