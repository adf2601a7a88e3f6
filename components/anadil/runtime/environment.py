"""Facts of this process from its environment: its image, its group, who started it."""

import os

PARENT_VARIABLE = "ANADIL_PARENT"
"""Process id of the `anadil run` that started this process and must not be outlived."""
END_VARIABLE = "ANADIL_END"
"""File for the end of a process that torchrun need not start again; each torchrun has one of its own."""
WATCH_HOST_VARIABLE = "ANADIL_WATCH_HOST"
"""Address that `anadil watch` listens on where 127.0.0.1 is the wrong one: no published port of a container reaches that."""


def image_name() -> str:
    """The image that this process runs in, as its environment says; empty outside a container."""
    return os.environ.get("ANADIL_IMAGE", "")


def in_group() -> bool:
    """Return whether torchrun has started this process."""
    # RANK alone does not tell: the training operator sets it to the number of the machine in a job with a master.
    return "LOCAL_RANK" in os.environ or ("RANK" in os.environ and "PET_NNODES" not in os.environ)
