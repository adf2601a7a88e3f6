"""`python -m anadil.measure`: some steps of the real trainer under one layout, as one line of JSON.

python -m anadil.measure --recipe smoke --layout '{"micro_batch_size": 4}' --steps 5
torchrun --nproc-per-node 8 -m anadil.measure ... --layout '{"data": 8}'
"""

import os
import sys
from collections.abc import Sequence

from anadil import entry
from anadil import log as logs
from anadil.measure.ask import RunSpec
from anadil.threads import wait_asleep


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    wait_asleep()
    logs.set_up("measure", container=True)
    return entry.guarded(lambda: _start(arguments))


def _start(arguments: list[str]) -> int:
    entry.die_with_parent()
    spec = RunSpec.parse(arguments)
    if spec.layout.devices > 1 and "RANK" not in os.environ:
        from anadil.model.torchrun import launch

        return launch("anadil.measure", arguments, spec.layout.devices)
    from anadil.measure.worker import run_measurement

    return run_measurement(spec)


if __name__ == "__main__":
    sys.exit(main())
