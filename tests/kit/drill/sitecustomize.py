"""Python loads this first in every process that has the folder on PYTHONPATH: faults for a pre-training."""

import sys
from pathlib import Path

if "anadil.pretrain" in sys.orig_argv:
    sys.path.append(str(Path(__file__).parents[3]))
    from tests.kit.fault_injection import hand_in

    hand_in()
