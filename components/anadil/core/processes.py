"""Processes that do a part of another one's work."""

import os
import resource
import signal
import sys


def die_with(parent: int) -> None:
    """Let the end of another process end this one, at once and however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends us
    if sys.platform.startswith("linux"):
        import ctypes

        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def allow_more_memory(num_bytes: int) -> None:
    """Leave room for what the process holds all the time, such as a model of the user's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != resource.RLIM_INFINITY:
        soft += num_bytes
        resource.setrlimit(
            resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
        )
