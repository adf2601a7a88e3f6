"""Mounted once at install: can the user of every image write to the claim, and read it back."""

import os
import sys
from pathlib import Path

folder = Path(sys.argv[1])
proof = folder / f".anadil-check-{os.getpid()}"
try:
    proof.write_text("anadil", encoding="utf-8")
    assert proof.read_text(encoding="utf-8") == "anadil"
    proof.unlink()
except OSError as error:
    sys.exit(
        f"{folder}: user {os.getuid()} cannot write ({error}); as root on a node that mounts it: "
        f"chown {os.getuid()}:{os.getgid()} on the top directory of the volume"
    )
free = os.statvfs(folder)
sys.stdout.write(f"{folder}: ready, {free.f_bavail * free.f_frsize / 2**30:,.0f} GiB free\n")
