#!/bin/sh
# scripts/wheel_environment.sh FOLDER: build the wheel, and install it into FOLDER/env as somebody without a clone has it.
# The packages that it needs are those of .venv, which are not copied: the environment's own come first.
set -eu
cd "$(dirname "$0")/.."
.venv/bin/pip wheel --quiet --no-deps -w "$1/wheel" .
.venv/bin/python -m venv --without-pip "$1/env"
.venv/bin/pip --python "$1/env/bin/python" install --quiet --no-deps --no-index "$1"/wheel/anadil-*.whl
.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$(echo "$1"/env/lib/python3*/site-packages)/others.pth"
