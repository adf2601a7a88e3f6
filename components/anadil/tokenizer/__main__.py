"""`python -m anadil.tokenizer`: the entry point of the image."""

from anadil.runtime.entry_point import main

raise SystemExit(main("tokenizer"))
