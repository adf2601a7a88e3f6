"""Remedy for packages that are not installed."""

import os

IMAGES = {
    "pipelines": "pipelines", "launch": "tools", "report": "tools", "s3": "tools", "tracking": "tools", "ray": "clean-ray",
    "hub": "clean",
}  # fmt: skip
"""Extra -> image that holds its packages beside the command line; that of a laptop holds nearly all."""


def install(extra: str) -> str:
    """The remedy where packages of one of this program's extras are missing.

    Nothing can be installed into an image that runs.
    """
    here = os.environ.get("ANADIL_IMAGE", "")
    command = f"pip install 'anadil[{extra}]'"
    if not here:
        return f"run {command}"
    place, _, tag = here.rpartition(":")
    other = f"{place.rpartition('/')[0]}/{IMAGES.get(extra, 'laptop')}:{tag}"
    if other != here:
        return f"the image {here} does not hold them; run it in {other}"
    return f"no image holds them beside this command; run it on a machine, after {command} there"
