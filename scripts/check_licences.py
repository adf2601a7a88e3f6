"""Refuse a Python package whose licence is not on the list, in what images hold.

    python scripts/check_licences.py DIRECTORY

The directory is that of the bills of materials which `images/build.sh` writes (`SBOM`). Debian's packages are not asked:
their licences are those of a distribution that is passed on as it is.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ALLOWED = frozenset(
    {
        "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
        "CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
        # Copyleft by file: whoever changes a file passes it on. Nobody changes them here.
        "MPL-1.1", "MPL-2.0",
        # Classifiers of packages that say no more.
        "Apache Software License", "BSD License", "ISC License (ISCL)", "MIT License", "Python Software Foundation License",
        "Mozilla Public License 2.0 (MPL 2.0)",
    }
)  # fmt: skip
"""Identifiers of SPDX, and what classifiers of PyPI call the same."""
READ = {
    "huey": "MIT", "kfp-kubernetes": "Apache-2.0", "kfp-pipeline-spec": "Apache-2.0", "kfp-server-api": "Apache-2.0",
    "protobuf": "BSD-3-Clause", "ray": "Apache-2.0", "skops": "MIT", "transformers": "Apache-2.0", "word2number": "MIT",
}  # fmt: skip
"""Package -> licence, where its metadata names none that a machine reads: from its file LICENSE or its field License."""
ACCEPTED = {
    "psycopg2-binary": "LGPL: a library of its own that the server loads, as it was published",
    "chardet": "LGPL: a library of its own that lm-evaluation-harness loads, as it was published",
}
"""Package -> why it may stay with another licence."""


def main(arguments: list[str]) -> int:
    """Print what is refused, else how many packages were asked."""
    folder = Path(arguments[0])
    packages: dict[str, set[str]] = defaultdict(set)
    for bill in sorted(folder.glob("*.cdx.json")):
        for part in json.loads(bill.read_text(encoding="utf-8"))["components"]:
            if part.get("purl", "").startswith("pkg:pypi/"):
                packages[part["name"]].update(licences(part))
    if not packages:
        sys.stderr.write(f"{folder}: no bill of materials; images/build.sh writes them\n")
        return 1
    refused = {
        name: said for name, said in packages.items() if name not in ACCEPTED and not may_stay(name, said)
    }
    for name, said in sorted(refused.items()):
        sys.stderr.write(
            f"{name}: {', '.join(sorted(said)) or 'no licence is named'}; do without it, or add the licence to "
            "scripts/check_licences.py\n"
        )
    sys.stdout.write(f"licences of {len(packages)} packages: {len(refused)} refused\n")
    return 1 if refused else 0


def licences(component: dict[str, Any]) -> Iterator[str]:
    """Licences that a part of a bill of materials names: expressions of SPDX, or the last part of a classifier."""
    for each in component.get("licenses", ()):
        said = each.get("expression") or each["license"].get("id") or each["license"]["name"]
        yield str(said).rpartition(" :: ")[2]


def may_stay(name: str, said: set[str]) -> bool:
    """True if everything that a package says of its licence is on the list."""
    words = said - {"OSI Approved"} or ({READ[name]} if name in READ else set())
    return bool(words) and all(map(is_allowed, words))


def is_allowed(expression: str) -> bool:
    """True if an expression of SPDX can be met: one side of each OR, which binds less, and both of each AND."""
    inner = re.fullmatch(r"\(([^()]*)\)", expression)
    if inner:
        return is_allowed(inner[1])
    for word, decide in ((" OR ", any), (" AND ", all)):
        sides = re.split(rf"{word}(?![^(]*\))", expression)
        if len(sides) > 1:
            return bool(decide(is_allowed(side) for side in sides))
    return expression.strip() in ALLOWED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
