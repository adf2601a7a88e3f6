#!/bin/sh
# install.sh NAME OPTION...: install into /opt/anadil what pip's options name and nothing else, note the hashes of
# what was downloaded for the bill of materials, and compile, so that it starts quickly on a read-only root.
set -eu
name=$1 && shift
touch /tmp/started
pip="/srv/venv/bin/python -m pip --no-cache-dir --disable-pip-version-check --python /opt/anadil/bin/python"
$pip install --quiet --root-user-action ignore --no-deps --no-compile \
    --build-constraint /srv/build.txt --report /tmp/report.json "$@"
mkdir -p /opt/anadil/hashes
/srv/venv/bin/python /srv/hashes.py /tmp/report.json > "/opt/anadil/hashes/$name.txt"
rm /tmp/report.json
# What is new is compiled, by its content: a release sets the times of all files, and a compiled file that names another
# time is not used. Exit code 123: a file is written for another version of Python; it stays a source.
find /opt/anadil/lib -name '*.py' -newer /tmp/started -print0 \
    | xargs -0 -r -n 500 -P "$(nproc)" /opt/anadil/bin/python -m compileall -qq --invalidation-mode unchecked-hash \
    || test $? = 123
rm /tmp/started
