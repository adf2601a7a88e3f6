"""`python -m anadil.launch.clean`: the entry point of the image clean-ray: the stage `clean`, which may drive pods."""

import sys

from anadil.launch.kubernetes.engines import CLUSTER_ENGINES
from anadil.runtime.entry_point import main

if __name__ == "__main__":
    sys.exit(main("clean", engines=CLUSTER_ENGINES))
