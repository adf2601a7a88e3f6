"""The site of the pages: its navigation, its links, and that it asks nothing of others."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import build_site
from build_site import navigation, pages, site_text

ROOT = Path(__file__).parents[1]
README = """# Project

[first](docs/guides/first.md), [folder](benchmarks/speed/), [tests](tests/code.py)

**Start**
- [First](docs/guides/first.md)

**The stages**

**Runs and their models**

**Behind it**

## Your cluster

"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of three pages and a file that is no page."""
    files = {
        "README.md": README,
        "docs/guides/first.md": "# First: a guide\n\nSee [the end](../../README.md#your-cluster).\n\n"
        "| | a |\n|---|---|\n| b | c |\n\n```bash\nmake\n```\n",
        "benchmarks/speed/README.md": "# Speed\n\n`[x](../../README.md)` [code](../../tests/code.py#L1)\n",
        "docs/images/picture.png": "",
        "tests/code.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(build_site, "ROOT", tmp_path)
    return tmp_path


def test_every_page_stands_in_one_group_and_those_of_docs_not_with_the_project() -> None:
    groups = navigation()

    assert sorted(["README.md", *(page for group in groups.values() for page in group)]) == pages()
    assert [page for page in groups["The project"] if page.startswith(("docs/", "benchmarks/"))] == []
    assert all(groups.values())


def test_a_guide_that_the_readme_does_not_name_is_in_no_group(project: Path) -> None:
    (project / "docs/guides/second.md").write_text("# Second\n", encoding="utf-8")

    assert [page for group in navigation().values() for page in group] == [
        "docs/guides/first.md",
        "benchmarks/speed/README.md",
    ]


def test_links_lead_to_pages_and_files_to_the_git_host_if_there_is_one(project: Path) -> None:
    assert project
    assert "[first](docs/guides/first.md), [folder](benchmarks/speed/index.md), tests\n" in site_text(
        "README.md", ""
    )
    assert "[tests](https://host/me/it/blob/HEAD/tests/code.py)" in site_text(
        "README.md", "https://host/me/it"
    )
    assert site_text("benchmarks/speed/README.md", "") == "# Speed\n\n`[x](../../README.md)` code\n"


def built(project: Path) -> subprocess.CompletedProcess[str]:
    """The build of a project by a copy of the script, in a process of its own as Sphinx wants it."""
    for name in ("scripts/build_site.py", "docs/site.css", "components/anadil/page/style.css"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, project / name)
    command = [sys.executable, str(project / "scripts/build_site.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_site_is_equal_bytes_asks_nothing_of_others_and_shows_the_colours_of_the_report(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("sphinx", reason="make site installs Sphinx")
    copy = tmp_path_factory.mktemp("other") / "copy"
    shutil.copytree(project, copy)

    for place in (project, copy):
        done = built(place)
        assert (done.returncode, done.stderr) == (0, "")

    site, other = project / "site", copy / "site"
    files = sorted(path.relative_to(site) for path in site.rglob("*") if path.is_file())
    assert [name for name in files if (site / name).read_bytes() != (other / name).read_bytes()] == []
    assert Path("benchmarks/speed/index.html") in files
    text = "".join(
        (site / name).read_text(encoding="utf-8") for name in files if name.suffix in (".html", ".css")
    )
    assert re.findall(r"(?:src=|<link[^>]*href=|url\(|@import )[\"']?(?:https?:)?//[^\"')]+", text) == []
    assert "--color-brand-primary: #0b6b62" in text
    # A theme that writes another text is noticed here: its replacement would stop without a word.
    assert [needed for needed in build_site.ACCESSIBLE.values() if needed not in text] == []
    assert 'href="docs/guides/first.html"' in (site / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_broken_links_and_a_page_in_no_group_fail_the_build(project: Path) -> None:
    pytest.importorskip("sphinx", reason="make site installs Sphinx")
    links = ("none.md", "../../README.md#absent", "#here", "../../tests/none.py", "../images/none.png")
    first = "# First\n\n" + " ".join(f"[a]({link})" for link in links)
    (project / "docs/guides/first.md").write_text(first, encoding="utf-8")
    (project / "docs/guides/second.md").write_text("# Second\n\n![a](../images/lost.png)\n", encoding="utf-8")

    done = built(project)

    assert done.returncode == 1
    faults = (
        "none.md",
        "absent",
        "here",
        "none.py",
        "none.png",
        "lost.png",
        "second.md: WARNING: document isn't included",
    )
    assert [name for name in faults if name not in done.stderr] == []
