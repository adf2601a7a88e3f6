#!/bin/sh
# images/base/debootstrap.sh [TAG]: make a base image from Debian's archive where no registry can be reached:
# Debian 12 with its own Python 3.11. As root; needs debootstrap and podman. MIRROR names another archive.
set -eu
tag=${1:-localhost/anadil/base:bookworm}
root=$(mktemp -d)
# debootstrap mounts the machine's /proc there while it works; nothing below a mount may be removed.
trap 'umount --quiet "$root/proc" "$root/sys" || true; rm -rf --one-file-system "$root" "$root.log"' EXIT
trap 'exit 130' INT TERM
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$root" \
    "${MIRROR:-http://deb.debian.org/debian}" > "$root.log" || { tail -n 20 "$root.log"; exit 1; }
tar -C "$root" --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' --exclude='./var/cache/apt/*.bin' \
    --exclude='./var/cache/apt/archives/*.deb' --exclude='./var/lib/apt/lists/*' --exclude='./var/log/*' -c . |
    podman import --quiet \
        --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'CMD ["python3"]' - "$tag"
