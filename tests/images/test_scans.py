import json
from pathlib import Path
from typing import Any

import pytest

import check_licences
import check_vulnerabilities


def bill(folder: Path, name: str, *licences: dict[str, Any], kind: str = "pypi") -> None:
    part = {"name": name, "purl": f"pkg:{kind}/{name}@1", "licenses": list(licences)}
    (folder / f"{name}.cdx.json").write_text(json.dumps({"components": [part]}), encoding="utf-8")


def named(text: str) -> dict[str, Any]:
    return {"license": {"name": text}}


@pytest.mark.parametrize(
    ("licences", "stays"),
    [
        ([{"license": {"id": "MIT"}}], True),
        ([{"license": {"id": "AGPL-3.0-only"}}], False),
        ([named("License :: OSI Approved :: BSD License")], True),
        ([named("License :: OSI Approved :: GNU General Public License v3 (GPLv3)")], False),
        ([named("Ask Leyla")], False),
        ([{"expression": "Apache-2.0 AND GPL-2.0-only"}], False),
        ([{"expression": "GPL-2.0-only OR MIT AND GPL-3.0-only"}], False),
        ([{"expression": "(MIT OR GPL-2.0-only) AND GPL-3.0-only"}], False),
        ([{"license": {"id": "MIT"}}, named("License :: Free for non-commercial use")], False),
        ([], False),
    ],
)
def test_a_licence_that_is_not_on_the_list_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], licences: list[dict[str, Any]], stays: bool
) -> None:
    bill(tmp_path, "sozluk", *licences)
    bill(tmp_path, "libc6", {"license": {"id": "LGPL-2.1"}}, kind="deb")

    code = check_licences.main([str(tmp_path)])

    assert code == (0 if stays else 1)
    assert ("sozluk: " in capsys.readouterr().err) is not stays


def test_without_a_bill_of_materials_nothing_is_taken_for_checked(tmp_path: Path) -> None:
    assert check_licences.main([str(tmp_path)]) == 1


def auditor(folder: Path, *rows: dict[str, Any]) -> str:
    """A program that answers like pip-audit, of which the last option names its file."""
    program = folder / "pip-audit"
    answer = json.dumps({"dependencies": rows})
    program.write_text(
        f'#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\ncat > "$2" << \'E\'\n{answer}\nE\n'
    )
    program.chmod(0o755)
    return str(program)


def test_a_known_vulnerability_is_refused_with_the_version_that_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flaw = {"id": "PYSEC-1", "fix_versions": ["2"], "aliases": [], "description": ""}
    rows = (
        {"name": "sozluk", "version": "1", "vulns": [flaw]},
        {"name": "mlflow", "version": "1", "vulns": []},
    )

    code = check_vulnerabilities.main([auditor(tmp_path, *rows)])

    printed = capsys.readouterr()
    assert code == 1
    assert "sozluk 1: PYSEC-1; mended in 2" in printed.err


def test_an_index_without_such_data_is_not_taken_for_one_that_knows_of_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"name": "mlflow", "skip_reason": "Dependency not found on PyPI and could not be audited: mlflow"}

    assert check_vulnerabilities.main([auditor(tmp_path, row)]) == 0
    assert capsys.readouterr().out.startswith("left out: no data on vulnerabilities")

    (tmp_path / "pip-audit").write_text("#!/bin/sh\necho no network >&2\nexit 1\n")

    assert check_vulnerabilities.main([str(tmp_path / "pip-audit")]) == 0
    assert capsys.readouterr().out.startswith("left out: no data on vulnerabilities")
