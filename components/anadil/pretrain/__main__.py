"""`python -m anadil.pretrain`: the entry point of the image."""

import sys

from anadil.entry import main

sys.exit(main("pretrain"))
