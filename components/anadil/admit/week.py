"""The weeks of a source: the documents that came with a corpus, and those of the corpora that it was added to."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from anadil.artifacts.artifact import Manifest, finished_manifest
from anadil.artifacts.prefetch import fetch
from anadil.clean.dedup.find_duplicates import REASONS as DUPLICATES
from anadil.clean.filters.judge_record import BLOCKED, CONTAMINATED, LANGUAGE, PAGE_LIMITS
from anadil.clean.filters.pii import patterns_of, replace_personal_data
from anadil.clean.kernels.columns import EXTERNAL, STATISTICS
from anadil.clean.write.row_files import STATS
from anadil.core.errors import DataError, IntegrityError
from anadil.core.json_text import read_json
from anadil.overlap.source_corpora import REASONS as REASONS_OF_OVERLAP
from anadil.runtime.cache_key import INPUT
from anadil.text.corpus import read_file

MAX_WEEKS, MAX_FILES, MAX_ROWS = 26, 4, 100_000
"""Earlier corpora that are looked at, files of rows of each, and rows of a week: 30 MB. A choice."""
MAX_CORPORA, MAX_TEXTS = 4, 2_000
"""Earlier corpora, and texts of each in the order of their hashes, in which personal data are looked for. A choice."""
KINDS = {
    "language": (LANGUAGE, "mixed", "script", "spelling"),
    "duplicates": tuple(DUPLICATES.values()),
    "contaminated": (CONTAMINATED,),
    "unusable": ("empty", "short"),
}
"""Check -> reasons that `clean` drops documents for."""
OF_OVERLAP = dict(zip(REASONS_OF_OVERLAP, (CONTAMINATED, *DUPLICATES.values()), strict=True))
"""Reason of `overlap` -> that of `clean` which says the same."""
JUDGED = tuple(name for name in STATISTICS if name not in EXTERNAL)
NO_STYLE = [BLOCKED, PAGE_LIMITS, *(reason for each in KINDS.values() for reason in each)]
"""Reasons that say nothing of how a text is written."""
COLUMNS = ("id", "file", "source", "host", "bytes_out", "reason", "personal_data", *JUDGED)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """New documents of a source."""

    documents: int
    """All that came, of which there may be more than rows."""
    bad: float
    """Records that could not be read, for each document."""
    heldout: Mapping[str, int]
    """Held-out documents that were looked at, and those of which the new text holds much (`contaminated`)."""
    columns: Mapping[str, npt.NDArray[Any]]
    """`COLUMNS` by row; beside them `origin`, and `files`: the file without the numbers that differ each week."""
    personal_data: tuple[float, float]
    """Documents with personal data, and those that were looked at."""
    measure: Literal["documents", "text"] = "documents"
    """Few long documents are much text: each figure counts documents, or the bytes of their text."""

    @property
    def sizes(self) -> Floats:
        """Size of each row."""
        rows = self.columns["bytes_out"]
        return rows.astype(np.float64) if self.measure == "text" else np.ones(len(rows))

    @property
    def size(self) -> float:
        """Size of all that came."""
        return float(self.sizes.sum()) * self.documents / max(1, len(self.sizes))

    @property
    def per_file(self) -> float:
        """Size of an input file."""
        return float(self.sizes.sum()) / max(1, len(set(self.columns["file"])))

    @property
    def weights(self) -> Floats:
        """Sizes, scaled to the number of equal documents that vary as much. Source: Kish, Survey Sampling (1965)."""
        sizes = self.sizes
        return sizes * (float(sizes.sum()) / max(1.0, float(sizes @ sizes)))

    def has_reason(self, reasons: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return True for each row that was dropped for one of some reasons."""
        return np.isin(self.columns["reason"].astype(str), list(reasons))

    def share(self, kind: str) -> tuple[float, float]:
        """Return the weight of the documents that a check asks for, and of all."""
        if kind == "personal_data":
            return self.personal_data
        # A record without text is as useless whether it can be read or not.
        weights, bad = self.weights, self.bad * len(self.sizes) if kind == "unusable" else 0.0
        return float(weights[self.has_reason(KINDS[kind])].sum()) + bad, float(weights.sum()) + bad

    def where(self, rows: npt.NDArray[np.bool_]) -> "Week":
        """Return the week with some of its rows."""
        documents = round(self.documents * float(rows.mean())) if len(rows) else 0
        columns = {name: column[rows] for name, column in self.columns.items()}
        return replace(self, columns=columns, documents=documents)


def read_week(uri: str, manifest: Manifest, most_files: int, excluded: Mapping[str, str]) -> Week:
    """Read the rows of a corpus, of so many files at most; `excluded` is id -> reason of what `overlap` leaves out."""
    files = sorted(name for name in manifest.files if name.startswith(f"{STATS}/"))
    files = files[:: max(1, -(-len(files) // most_files))]
    folder, _ = fetch(uri, "corpus", ("stats.json", *files))
    stats = read_json(folder / "stats.json")
    table = pa.concat_tables([pq.ParquetFile(folder / name).read(list(COLUMNS)) for name in files])
    # Rows stand in the order of the files, and a part from the front would be of some files only.
    table = table.take(np.arange(0, table.num_rows, max(1, -(-table.num_rows // MAX_ROWS))))
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in COLUMNS}
    pairs = zip(columns["reason"], columns["id"], strict=True)
    reasons = [OF_OVERLAP.get(excluded.get(name, "")) if reason is None else reason for reason, name in pairs]
    families = [re.sub(r"\d+", "#", name.rpartition("/")[2]) for name in columns["file"]]
    columns["reason"], columns["files"] = np.array(reasons, object), np.array(families, object)
    columns["origin"] = np.array([each.partition(" ")[2] for each in columns["source"]], object)
    personal_data = float((columns["personal_data"] > 0).sum()), float(table.num_rows)
    return Week(
        documents=stats["in"], bad=stats["bad"] / max(1, stats["in"]), heldout=stats["heldout"],
        columns=columns, personal_data=personal_data,
    )  # fmt: skip


def earlier_corpora(word: str, manifest: Manifest) -> tuple[list[tuple[str, Manifest]], list[str]]:
    """Return the corpora that one was added to, the newest first, and a sentence on one that cannot be read."""
    corpora: list[tuple[str, Manifest]] = []
    while (digest := manifest.origin.get(f"{INPUT}clean.since")) and len(corpora) < MAX_WEEKS:
        clean: Any = manifest.recipe.get("clean")
        place = str(clean["since"])
        try:
            manifest = finished_manifest(place, "corpus")
            # A corpus of other documents would make another thing usual, in silence.
            if digest != manifest.digest:
                raise IntegrityError(f"{place}: was written again since")
        except (DataError, IntegrityError) as error:
            # An old corpus may be removed to save space: the others still tell what is usual.
            return corpora, [f"{word}: not compared with text before {len(corpora) + 1} weeks: {error}"]
        corpora.append((place, manifest))
    return corpora, []


def personal_data_of(corpora: Sequence[tuple[str, Manifest]], language: str) -> list[tuple[float, float]]:
    """Count the texts with personal data, and those that were read, of the newest corpora, each added to the next."""
    counts, patterns = [], patterns_of(language)
    earlier = [*(manifest.files for _, manifest in corpora[1:]), {}]
    for (uri, manifest), before in list(zip(corpora, earlier, strict=True))[: MAX_CORPORA + 1]:
        # Files of an earlier corpus stay under their names.
        files = sorted(name for name in manifest.files if name.startswith("train/") and name not in before)
        folder, texts = fetch(uri, "corpus", tuple(files[:1]))[0], []
        if files:
            texts = [each.text for each in islice(read_file(folder / files[0]), MAX_TEXTS)]
        holds = sum(bool(replace_personal_data(text, patterns)[1]) for text in texts)
        counts.append((float(holds), float(len(texts))))
    return counts
