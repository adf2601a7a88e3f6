"""Build the pages of the project as a static site in `site/`: `python scripts/build_site.py` (`make site`).

Every Markdown page keeps its place, and each README becomes the index of its folder. Groups and order of the navigation
are those of the README's lists. A broken link, a broken anchor and a page in no group fail the build.

SITE_REPOSITORY is the project's address on a git host. Links to files that are no pages lead there. Without it their text
stays, and no link.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "charts", "components", "docs", "examples", "pipelines")
PICTURES = "docs/images"
README_GROUPS = ("Start", "The stages", "Runs and their models", "Your cluster", "Behind it")
OTHER_GROUPS = {
    "Examples": "examples/", "Reference": "docs/reference/", "Benchmarks": "benchmarks/", "The project": "",
}  # fmt: skip
"""Group -> how the paths of its pages begin. A page belongs to the first that fits."""
GROUP = re.compile(r"^(?:## |\*\*)([^*\n]+)(?:\*\*)?\n(.*?)(?=^## |^\*\*|\Z)", re.MULTILINE | re.DOTALL)
CODE_OR_LINK = re.compile(
    r"^ *(?P<fence>```+).*?^ *(?P=fence) *$|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
    r"|(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^()\s#]+)(?P<anchor>(?:#[^()\s]*)?)\)",
    re.MULTILINE | re.DOTALL,
)

LOOK = ROOT / "components/anadil/page/style.css"
"""The report's, whose accent and fonts the site has too."""
ADDITIONS = ROOT / "docs/site.css"


ACCESSIBLE = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="Headings of this page">',
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    '<th class="head"><p></p></th>': '<td class="head"></td>',
    '<div id="search-results">': '<h1>Search</h1><div id="search-results">',
}
"""Text of the generator and its theme -> the same as a screen reader and a keyboard need it. Found with axe."""


def pages() -> list[str]:
    """Paths of all pages."""
    paths = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def navigation() -> dict[str, list[str]]:
    """Group -> its pages, in the README's order."""
    rest = [page for page in pages() if page != "README.md"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sections = dict(GROUP.findall(readme))
    groups: dict[str, list[str]] = {}
    for name in README_GROUPS:
        links = re.findall(r"\]\(((?:docs/guides|docs/concepts)/[^)#]+)", sections[name])
        groups[name] = [page for page in dict.fromkeys(links) if page in rest]
        rest = [page for page in rest if page not in groups[name]]
    for name, prefix in OTHER_GROUPS.items():
        groups[name] = [
            page for page in rest if page.startswith(prefix) and (prefix or not page.startswith("docs/"))
        ]
        rest = [page for page in rest if page not in groups[name]]
    return groups


def site_text(page: str, repository: str) -> str:
    """A page's text whose links lead to pages of the site, to pictures and to the git host."""

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or re.match(r"[a-z]+:", target):
            return match[0]
        path = Path(os.path.normpath(ROOT / page / ".." / target))
        if path.is_relative_to(ROOT / PICTURES):
            return match[0]
        if (path / "README.md").is_file():
            path, target = path / "README.md", f"{target.rstrip('/')}/README.md"
        if path.suffix == ".md" or not path.exists():  # the build finds out what is broken
            return f"{match['text']}({_site_name(target)}{match['anchor']})"
        if repository:
            kind = "tree" if path.is_dir() else "blob"
            return f"{match['text']}({repository}/{kind}/HEAD/{path.relative_to(ROOT).as_posix()})"
        return match["text"][1:-1]

    return CODE_OR_LINK.sub(link, (ROOT / page).read_text(encoding="utf-8"))


def build(out: Path, repository: str = "") -> int:
    """Write the site; 1 where a link or the navigation is broken, else 0."""
    from sphinx.application import Sphinx

    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, "source")
        for page in pages():
            path = source / _site_name(page)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(site_text(page, repository), encoding="utf-8")
        shutil.copytree(ROOT / PICTURES, source / PICTURES)
        with (source / "index.md").open("a", encoding="utf-8") as index:
            index.writelines(_toctree(name, group) for name, group in navigation().items())
        shutil.rmtree(out, ignore_errors=True)
        trees = Path(temporary, "doctrees")
        app = Sphinx(source, None, out, trees, "html", _settings(), status=None, warningiserror=True)
        app.build()
    (out / ".buildinfo").unlink()
    for file in out.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        for written, needed in ACCESSIBLE.items():
            text = text.replace(written, needed)
        file.write_text(text, encoding="utf-8")
    return int(app.statuscode)


def _settings() -> dict[str, object]:
    """Sphinx's settings."""
    look = LOOK.read_text(encoding="utf-8")
    light, dark = (
        dict.fromkeys((f"color-brand-{use}" for use in ("primary", "content", "visited")), accent)
        for accent in re.findall(r"--accent: (#\w+);", look)[:2]  # the third is for print
    )
    [fonts] = re.findall(r"^  font: [\w./]+ (system-ui.+);", look, re.MULTILINE)
    return {
        "project": "anadil",
        "language": "en",
        "extensions": ["myst_parser"],
        # Pages are plain Markdown, as a git host reads it.
        "myst_disable_syntax": ["myst_block_break", "myst_line_comment", "myst_role", "myst_target"],
        "myst_heading_anchors": 6,
        "smartquotes": False,
        "html_theme": "furo",
        "html_title": "anadil",
        "html_copy_source": False,
        "html_use_index": False,
        "html_show_copyright": False,
        "html_show_sphinx": False,
        "html_permalinks_icon": "#",
        "html_static_path": [str(ADDITIONS)],
        "html_css_files": [ADDITIONS.name],
        "html_theme_options": {
            "light_css_variables": {**light, "font-stack": fonts},
            "dark_css_variables": dark,
            "top_of_page_buttons": [],
        },
    }


def _site_name(path: str) -> str:
    return re.sub(r"(^|/)README\.md$", r"\1index.md", path)


def _toctree(name: str, group: list[str]) -> str:
    """A group of the navigation. A title of the sidebar ends at its colon."""
    lines = [f"\n```{{toctree}}\n:hidden:\n:caption: {name}\n"]
    for page in group:
        head = (ROOT / page).read_text(encoding="utf-8").partition("\n")[0]
        lines.append(f"{head.removeprefix('# ').partition(':')[0]} <{_site_name(page).removesuffix('.md')}>")
    return "\n".join([*lines, "```\n"])


if __name__ == "__main__":
    sys.exit(build(ROOT / "site", os.environ.get("SITE_REPOSITORY", "").rstrip("/")))
