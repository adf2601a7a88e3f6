"""`python -m anadil.tokenizer`: the entry point of the image."""

import sys

from anadil.entry import main

sys.exit(main("tokenizer"))
