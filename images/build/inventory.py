"""Write the bill of materials of the image that this runs in: CycloneDX JSON on stdout.

Python packages come from cyclonedx-py, with the hashes of the files that pip downloaded;
the interpreter and Debian's packages are added. Runs in a build stage only.
"""

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

PYTHON = "/opt/anadil/bin/python"
HASHES = Path("/opt/anadil/hashes")
DPKG = Path("/var/lib/dpkg/status")


def main() -> None:
    """Print the bill."""
    # Checking against the schema takes 20 s; the library writes nothing that the schema refuses.
    options = ["environment", "--output-reproducible", "--no-validate", "--spec-version", "1.6", PYTHON]
    command = [Path(sys.executable).with_name("cyclonedx-py"), *options]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    bill = Bom.from_json(json.loads(made.stdout))
    hashes = dict(_hashes())
    for component in bill.components:
        if digest := hashes.get(_normal(component.name)):
            component.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=digest))
    bill.components.add(_component(PackageURL("generic", None, "python", platform.python_version())))
    bill.components.update(map(_component, _debian_packages()))
    # Equal packages have equal bills: the time is that of the layer, which a release sets, and the number follows.
    bill.metadata.timestamp = datetime.fromtimestamp(int(HASHES.stat().st_mtime), UTC)
    bill.serial_number = uuid5(NAMESPACE_OID, "\n".join(sorted(str(each.purl) for each in bill.components)))
    sys.stdout.write(make_outputter(bill, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1))


def _normal(name: str) -> str:
    """Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _hashes() -> Iterator[tuple[str, str]]:
    """Python package, SHA-256 of the file that it was installed from."""
    for file in HASHES.glob("*.txt"):
        for line in file.read_text(encoding="utf-8").splitlines():
            name, digest = line.split()
            yield _normal(name), digest


def _debian_packages() -> Iterator[PackageURL]:
    for paragraph in DPKG.read_text().split("\n\n") if DPKG.is_file() else []:
        fields = dict(re.findall(r"^([A-Z][A-Za-z-]*): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status") == "install ok installed":
            place = {"arch": fields["Architecture"], "distro": "bookworm"}
            yield PackageURL("deb", "debian", fields["Package"], fields["Version"], place)


def _component(purl: PackageURL) -> Component:
    return Component(name=purl.name, version=purl.version, purl=purl, bom_ref=purl.to_string())


if __name__ == "__main__":
    main()
