#!/bin/sh
# scripts/wheel_environment.sh FOLDER: build sdist and wheel, hold the wheel against the one of the sdist, and install it into
# FOLDER/env as somebody without a clone has it. The packages that it needs are those of .venv, which are not copied: the
# environment's own come first. All that [laptop] asks for has to be there, in the versions of constraints.txt.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "$1"
.venv/bin/python -m hatchling build -d "$1/built" > "$1/log" 2>&1 || { cat "$1/log"; exit 1; }
.venv/bin/pip wheel --quiet --no-deps --no-build-isolation -w "$1/wheel" "$1"/built/anadil-*.tar.gz
cmp "$1"/built/anadil-*.whl "$1"/wheel/anadil-*.whl
.venv/bin/python -m venv --without-pip "$1/env"
.venv/bin/pip --python "$1/env/bin/python" install --quiet --no-deps --no-index "$1"/wheel/anadil-*.whl
.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$(echo "$1"/env/lib/python3*/site-packages)/others.pth"
.venv/bin/pip --python "$1/env/bin/python" install --quiet --dry-run --no-index -c constraints.txt "$(echo "$1"/wheel/anadil-*.whl)[laptop]"
