"""`python -m anadil.encode`: the entry point."""

from anadil.runtime.entry_point import main

raise SystemExit(main("encode"))
