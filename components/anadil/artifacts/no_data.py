"""Files that hold no data by convention, and lie in directories beside those that do."""

import re
from collections.abc import Iterable

OF_PROGRAMS = re.compile(
    r"_success|_(common_)?metadata|_(committed|started)_.*|.*\.(crc|md5|sha1|sha256|sha512|asc|sig|lock|md|py|cff|bib|ya?ml|toml|ini|cfg|conf|sh|css|js"
    r"|ipynb|log|png|jpe?g|gif|svg|webp|ico|bmp|tiff?|woff2?|ttf|mp[34]|wav)"
    r"|(md5|sha1|sha256|sha512|check)sums?(\.txt)?|thumbs\.db|desktop\.ini|\..*",
    re.IGNORECASE,
)
"""Marks of Spark and Hadoop, checksums, scripts, settings, pictures and hidden files."""
OF_PEOPLE = re.compile(
    r"(readme|licen[sc]es?|copying|notice|citation|changelog|contributing|authors|acknowledge?ments)(\.(txt|rst|html?|pdf))?",
    re.IGNORECASE,
)
OF_DATASETS = re.compile(
    r"(dataset_infos?|dataset_dict|state|manifest|croissant|metadata_croissant)\.json", re.IGNORECASE
)
ROWS = re.compile(r".*\.((jsonl|ndjson|json|warc)(\.gz|\.zst)?|parquet|arrow)", re.IGNORECASE)
BESIDE_ROWS = re.compile(
    r"((log|index|urls|files|stats|statistics|summary|report|sources?|manifest|about|info|counts)(\.(txt|html?|csv|tsv|xlsx))"
    r"|.*[-_.](stats|statistics|log|summary)\.(txt|csv|tsv|xlsx)|.*\.(pdf|docx?|pptx?|tex))",
    re.IGNORECASE,
)
"""Files that describe the rows in their directory. Elsewhere they can be data: `index.html` is a page of a saved site."""
FOLDERS = frozenset(("_delta_log", "_temporary", "_spark_metadata", "_symlink_format_manifest"))
"""Names that Spark and Delta Lake give tables and lists about the data."""


def is_no_data(path: str) -> bool:
    """Return whether a file's name says that it holds no data.

    Args:
        path: From the directory that a recipe names, so that hidden directories above count for nothing.
    """
    *folders, name = path.split("/")
    if any(folder in FOLDERS or folder.startswith(".") for folder in folders):
        return True
    return any(pattern.fullmatch(name) for pattern in (OF_PROGRAMS, OF_PEOPLE, OF_DATASETS))


def are_beside_rows(paths: Iterable[str]) -> set[str]:
    """Return the files that describe files of rows in their directory."""
    names = [*paths]
    with_rows = {
        name.rpartition("/")[0] for name in names if ROWS.fullmatch(name) and not is_no_data(_last(name))
    }
    return {
        name for name in names if name.rpartition("/")[0] in with_rows and BESIDE_ROWS.fullmatch(_last(name))
    }


def _last(path: str) -> str:
    return path.rpartition("/")[2]
