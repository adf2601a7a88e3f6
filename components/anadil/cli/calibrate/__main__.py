"""`python -m anadil.cli.calibrate SPEC`: some steps of the real trainer under one layout, as one line of JSON.

SPEC is JSON, see `anadil.cli.calibrate.runs.RunSpec`; `anadil plan --measure` starts it, and jobs of `--jobs` do.
"""

import os
import sys
from collections.abc import Sequence

from anadil.cli.calibrate.runs import MODULE, spec_from
from anadil.core import log as logs
from anadil.core.errors import RecipeError
from anadil.runtime.signals import die_with_parent
from anadil.runtime.termination import exit_code_of
from anadil.runtime.threads import wait_asleep


def main() -> int:
    """Measure the run that the command line names; the exit code."""
    wait_asleep()
    logs.set_up("measure", container=True)
    return exit_code_of(lambda: _start(sys.argv[1:]))


def _start(arguments: Sequence[str]) -> int:
    die_with_parent()
    if len(arguments) != 1 or not arguments[0].startswith("{"):
        raise RecipeError("give one argument, the run as JSON; anadil plan --measure and --jobs write it")
    spec = spec_from(arguments[0])
    if spec.layout.devices > 1 and "RANK" not in os.environ:
        from anadil.runtime.torchrun import launch_group

        return launch_group(MODULE, arguments, spec.layout.devices)
    from anadil.cli.calibrate.worker import run_measurement

    return run_measurement(spec)


if __name__ == "__main__":
    sys.exit(main())
