#!/bin/sh
# install.sh NAME OPTION...: install into /opt/anadil what pip's options name and nothing else, note the hashes of
# what was downloaded for the bill of materials, and compile, so that it starts quickly on a read-only root.
set -eu
name=$1 && shift
pip="/srv/venv/bin/python -m pip --no-cache-dir --disable-pip-version-check --python /opt/anadil/bin/python"
$pip install --quiet --root-user-action ignore --no-deps --no-compile \
    --build-constraint /srv/build.txt --report /tmp/report.json "$@"
mkdir -p /opt/anadil/hashes
/srv/venv/bin/python /srv/hashes.py /tmp/report.json > "/opt/anadil/hashes/$name.txt"
rm /tmp/report.json
# Exit code 1: a file is written for another version of Python; it stays a source.
/opt/anadil/bin/python -m compileall -qq -j 0 /opt/anadil/lib || test $? = 1
