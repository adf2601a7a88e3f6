"""Files that hold no data by convention, and lie in directories beside those that do."""

import re

OF_PROGRAMS = re.compile(
    r"_success|_(common_)?metadata|_(committed|started)_.*|.*\.(crc|md5|sha1|sha256|sha512|asc|sig|lock|md|py|cff|bib)"
    r"|(md5|sha1|sha256|sha512|check)sums?(\.txt)?|thumbs\.db|desktop\.ini|\..*",
    re.IGNORECASE,
)
"""What Spark and Hadoop write beside their parts, checksums, loading scripts of the hub, and what is hidden."""
OF_PEOPLE = re.compile(
    r"(readme|licen[sc]es?|copying|notice|citation|changelog|contributing|authors|acknowledge?ments)(\.(txt|rst|html?|pdf))?",
    re.IGNORECASE,
)
OF_DATASETS = re.compile(
    r"(dataset_infos?|dataset_dict|state|manifest|croissant|metadata_croissant)\.json", re.IGNORECASE
)
FOLDERS = frozenset(("_delta_log", "_temporary", "_spark_metadata", "_symlink_format_manifest"))
"""Of Spark and Delta Lake: tables and lists that are about the data."""


def is_no_data(path: str) -> bool:
    """Whether a file's name says that it holds no data.

    Args:
        path: From the directory that a recipe names, so that hidden directories above count for nothing.
    """
    *folders, name = path.split("/")
    if any(folder in FOLDERS or folder.startswith(".") for folder in folders):
        return True
    return any(pattern.fullmatch(name) for pattern in (OF_PROGRAMS, OF_PEOPLE, OF_DATASETS))
