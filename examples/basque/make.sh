#!/bin/sh
# Makes the Basque example in DIR, on Debian or Ubuntu: text, chats, the whole pipeline, a GGUF file, a page for judges.
# Give the command again where it was stopped: what is finished is reused.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: make.sh DIR}"
cd "$1"
if [ ! -f questions.jsonl ]; then
    apt-get download libreoffice-help-eu libreoffice-help-en-us
    rm -rf help text heldout
    for package in ./*.deb; do dpkg-deb -x "$package" help; done
    mkdir text
    mv help/usr/share/libreoffice/help/eu/text text/eu
    mv help/usr/share/libreoffice/help/en-US/text text/en
    python "$here/prepare.py"
fi
anadil run "$here/recipe.yaml" --work work -o json > run.json
artifact() { python -c 'import json, sys; print(json.load(open("run.json"))[sys.argv[1]])' "$1"; }
[ -d basque ] || anadil export "$(artifact adapter)" --format gguf --quantize q8_0 --out basque
[ -d judge ] || anadil judge page "$(artifact scores)" --between finetuned base --out judge
