"""`python -m anadil`: the same as the command `anadil`."""

import sys

from anadil.cli.main import main

sys.exit(main())
