"""Refuse packages of the images' locks that have a known vulnerability.

    python scripts/check_vulnerabilities.py PIP_AUDIT

PIP_AUDIT is that program, which asks PyPI. An index that has no such data, as a mirror, is told from one that knows of
none: pip-audit itself ends well with both.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from make_image_locks import LOCKS, pins

ACCEPTED: dict[str, str] = {}
"""Id of a vulnerability -> why what is built here does not meet it."""
PROBE = "mlflow"
"""A package of which vulnerabilities are known: whoever has data has some of it."""


def main(arguments: list[str]) -> int:
    """Print what is known."""
    packages: dict[str, str] = {}
    for lock in sorted(LOCKS.glob("*.txt")):
        packages |= {name: version.partition("+")[0] for name, version in pins(lock).items()}
    if not any("vulns" in each for each in audit(arguments[0], {PROBE: packages[PROBE]})):
        sys.stdout.write("left out: no data on vulnerabilities can be had from the package index here\n")
        return 0
    rows = audit(arguments[0], packages)
    known = {
        f"{row['name']} {row['version']}: {each['id']}; mended in {', '.join(each['fix_versions']) or 'no version'}"
        for row in rows
        for each in row.get("vulns", ())
        if each["id"] not in ACCEPTED
    }
    unknown = [row["name"] for row in rows if "vulns" not in row]
    sys.stdout.write(
        f"vulnerabilities of {len(rows)} packages: {len(known)} known, {len(unknown)} without data\n"
    )
    sys.stderr.writelines(
        f"{line}; move it in pyproject.toml and make the locks again\n" for line in sorted(known)
    )
    return 1 if known else 0


def audit(program: str, packages: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each package, with `vulns` where the index has data; none where it does not answer."""
    with tempfile.TemporaryDirectory() as folder:
        requirements, out = Path(folder) / "requirements.txt", Path(folder) / "audit.json"
        requirements.write_text(
            "".join(f"{name}=={version}\n" for name, version in packages.items()), encoding="utf-8"
        )
        options = ["--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json"]
        command = [program, *options, "--output", str(out), "--requirement", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not out.is_file():
            sys.stderr.write(done.stderr[-500:])
            return []
        rows: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["dependencies"]
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
