#!/bin/sh
# images/ci.sh [build|test]: on a Debian 12 machine, as root: what builds images, a base image, all images (or those
# that IMAGES names); then, unless `build` asks for no more, their tests; then, unless `test` does, a scan of licences and known
# vulnerabilities, and the whole pipeline on built-in data with every step in its image. The machine's pip settings serve the builds.
set -eu
cd "$(dirname "$0")/.."
say() { printf '\n== images: %s (%s s)\n' "$1" "$(($(date +%s) - started))"; }
started=$(date +%s)
scratch=$(mktemp -d)
service=
trap '[ -z "$service" ] || kill "$service"; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
export CONTAINERS_CONF="$PWD/images/base/containers.conf" BUILDER=podman REGISTRY=localhost/anadil
export BASE=localhost/anadil/base:bookworm PIP_CONFIG_FILE="$scratch/pip.conf" SBOM="$scratch/sbom"

# What builds wheels and runs tests is the environment of `make test`; what sets it up is looked for first.
ready() { for each in python pytest anadil; do [ -x ".venv/bin/$each" ] || return 1; done; }
if ! ready && ! { command -v make && python3 -c 'import ensurepip, venv'; } > /dev/null 2>&1; then
    echo "images/ci.sh: no .venv here, and no make or no python3-venv to set it up with; run" >&2
    echo "  apt-get install -y make python3-venv && make .venv/installed-dev" >&2
    exit 4
fi

say "podman, debootstrap"
if ! { command -v podman && command -v runc && command -v debootstrap; } > /dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        containernetworking-plugins debootstrap iptables podman runc > "$scratch/apt.log"
fi
podman info > "$scratch/podman.log" 2>&1 || {
    tail -n 5 "$scratch/podman.log"
    echo "left out: podman cannot run here"
    exit 0
}

if ! ready; then
    say "environment of the tests"
    (unset PIP_CONFIG_FILE && make .venv/installed-dev)
fi

say "base image"
podman image exists "$BASE" || sh images/base/debootstrap.sh "$BASE"

say "images"
BUILD_OPTIONS="--network host --volume /etc/ssl/certs:/etc/ssl/certs:ro"
printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\ntimeout = 180\n' > "$PIP_CONFIG_FILE"
index=${PIP_INDEX_URL:-$(PIP_CONFIG_FILE='' python3 -m pip config get global.index-url 2> /dev/null || true)}
[ -z "$index" ] || echo "index-url = $index" >> "$PIP_CONFIG_FILE"
# Where torch came from a mirror of the CPU build, the images take it from there too, however pip was told of it.
torch=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("torch"))')
case $torch in *+cpu)
    (unset PIP_CONFIG_FILE && .venv/bin/pip download -q --no-deps -d "$scratch/wheels" "torch==$torch")
    BUILD_OPTIONS="$BUILD_OPTIONS --volume $scratch/wheels:/mnt:ro"
    echo "find-links = /mnt" >> "$PIP_CONFIG_FILE"
    export TORCH_INDEX=
esac
export BUILD_OPTIONS
# shellcheck disable=SC2086  # several names in one word
images/build.sh ${IMAGES:-all} 2> "$scratch/build.log" || { tail -n 40 "$scratch/build.log"; exit 1; }

[ "${1:-}" != build ] || exit 0

say "tests of the images"
(unset PIP_CONFIG_FILE && .venv/bin/pytest -q -m image tests/images)

[ "${1:-}" != test ] || exit 0

say "licences and known vulnerabilities of what the images hold"
.venv/bin/python scripts/check_licences.py "$SBOM"
python3 -m venv "$scratch/audit"
(unset PIP_CONFIG_FILE && "$scratch/audit/bin/pip" install --quiet pip-audit)
.venv/bin/python scripts/check_vulnerabilities.py "$scratch/audit/bin/pip-audit"

say "the pipeline, each step in its image"
podman system service --time=0 "unix://$scratch/podman.sock" &
service=$!
export DOCKER_HOST="unix://$scratch/podman.sock"
while [ ! -S "$scratch/podman.sock" ]; do sleep 0.2; done
.venv/bin/anadil run smoke --runner docker --work "$scratch/work" --set "cluster.image=$REGISTRY/{stage}:{version}"
say "done"
