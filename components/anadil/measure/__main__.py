"""`python -m anadil.measure`: some steps of the real trainer under one layout, as one line of JSON.

python -m anadil.measure --recipe smoke --layout '{"micro_batch_size": 4}' --steps 5
torchrun --nproc-per-node 8 -m anadil.measure ... --layout '{"data": 8}'
"""

import os
import sys
from collections.abc import Sequence

from anadil import log as logs
from anadil.measure.ask import Ask
from anadil.runtime.signals import die_with_parent
from anadil.runtime.termination import exit_code_of
from anadil.threads import wait_asleep


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    wait_asleep()
    logs.set_up("measure", container=True)
    return exit_code_of(lambda: _start(arguments))


def _start(arguments: list[str]) -> int:
    die_with_parent()
    ask = Ask.parse(arguments)
    if ask.layout.devices > 1 and "RANK" not in os.environ:
        from anadil.model.torchrun import launch_group

        return launch_group("anadil.measure", arguments, ask.layout.devices)
    from anadil.measure.worker import run

    return run(ask)


if __name__ == "__main__":
    sys.exit(main())
