"""`python -m anadil.tasks`: the entry point of the image."""

import sys

from anadil.runtime.entry_point import main

sys.exit(main("tasks"))
