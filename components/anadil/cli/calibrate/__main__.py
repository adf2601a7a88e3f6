"""`python -m anadil.cli.calibrate`: some steps of the real trainer under one layout, as one line of JSON.

python -m anadil.cli.calibrate --recipe smoke --layout '{"micro_batch_size": 4}' --steps 5
torchrun --nproc-per-node 8 -m anadil.cli.calibrate ... --layout '{"data": 8}'
"""

import os
import sys
from collections.abc import Sequence

from anadil.cli.calibrate.spec import RunSpec
from anadil.core import log as logs
from anadil.runtime.signals import die_with_parent
from anadil.runtime.termination import exit_code_of
from anadil.runtime.threads import wait_asleep


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    wait_asleep()
    logs.set_up("measure", container=True)
    return exit_code_of(lambda: _start(arguments))


def _start(arguments: list[str]) -> int:
    die_with_parent()
    spec = RunSpec.parse(arguments)
    if spec.layout.devices > 1 and "RANK" not in os.environ:
        from anadil.runtime.torchrun import launch_group

        return launch_group("anadil.cli.calibrate", arguments, spec.layout.devices)
    from anadil.cli.calibrate.worker import run_measurement

    return run_measurement(spec)


if __name__ == "__main__":
    sys.exit(main())
