"""Print the package and the SHA-256 of each file that pip installed, from its report: `hashes.py REPORT`."""

import json
import sys
from pathlib import Path

for item in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["install"]:
    digest = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest:
        sys.stdout.write(f"{item['metadata']['name']} {digest}\n")
