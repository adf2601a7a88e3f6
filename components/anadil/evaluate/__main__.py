"""`python -m anadil.evaluate`: the entry point of the image."""

from anadil.runtime.entry_point import main

raise SystemExit(main("evaluate"))
