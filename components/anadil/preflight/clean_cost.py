"""Estimate the cost of a run of `clean` for given files: shards, memory, disk, CPU time.

Disk and CPU time are upper bounds. If 1 % of a crawl is in the language, it needs a hundredth of this disk, and a
seventh of this CPU time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from anadil.artifacts import storage
from anadil.artifacts.json_values import JSON_SUFFIXES, PACKED_JSON
from anadil.artifacts.line_reader import PACKED_LINES, PLAIN_LINES
from anadil.artifacts.separated_file import PACKED_TABLES, PLAIN_TABLES
from anadil.artifacts.workbook import WORKBOOK
from anadil.core.format import GIB, MIB
from anadil.core.stages import STAGES
from anadil.recipe.clean import Clean
from anadil.recipe.sections import Recipe
from anadil.runtime.job import files_key, is_kept, named_files, recipes_of

# Memory of one process at its work, whatever the input. Measured: 0.11 GiB at the start, 16 MiB of sorted documents,
# 0.4 GiB while a line of 15 MiB is judged; some 0.3 GiB for compiled rules and the second extractor.
PROCESS_BYTES = GIB
# Memory of the process that plans, finds duplicates a part at a time and keeps the counts. It must hold 5 million
# documents' worth of one part in this.
DRIVER_BYTES = 2 * GIB
# Shards and the corpus that is made of them: twice a third of the text, and 200 bytes for a document of 2 kB.
DISK_PER_TEXT_BYTE = 0.8
# CPU seconds for a megabyte (10^6 bytes) of text, or of HTML with its extraction, where all is in the language.
# Source: `benchmarks/clean/README.md`, rounded up: text 0.15 (Azerbaijani) and 0.19 (Japanese), `.warc.gz` 0.71, which is
# 0.14 for each of the `PACKED_HTML` bytes of HTML in it. On a quiet machine: cores that other programs share, or older ones,
# took up to 2.7 times as long.
CPU_S_PER_MB = {"text": 0.2, "html": 0.15}
HTML = (".html", ".htm", ".warc", ".warc.gz")
PACKED_HTML = 5.0  # Bytes of HTML in one byte of `.warc.gz`. Source: 64 MB held 316 MB.
# Bytes of text in one byte of a file, by suffix, rounded up.
# Source: measured on prose and law in five languages: gzip 3.1 to 4.7, zstd at its default level 3.2 to 4.5
# (4.0 to 6.4 at level 19), Parquet 1.9 to 2.7 with snappy and 2.8 to 4.2 with zstd; 160 Japanese web pages gave
# 0.12 bytes of text for a byte of HTML and 0.68 for a byte of gzip, Azerbaijani articles in plain pages 2.6. 30,000 rows of
# questions and answers in a workbook gave 2.2.
TEXT_PER_BYTE = {
    **dict.fromkeys((*PLAIN_LINES, *PLAIN_TABLES, ".txt", ".json"), 1.0),
    **dict.fromkeys((*PACKED_LINES, *PACKED_TABLES, *PACKED_JSON), 5.0),
    ".parquet": 4.0,
    WORKBOOK: 3.0,
    ".html": 0.2,
    ".htm": 0.2,
    ".warc": 0.2,
    ".warc.gz": 3.0,
    ".warc.wet": 1.0,
    ".warc.wet.gz": 5.0,
}
# Files of which nobody can begin in the middle.
WHOLE = (*PACKED_LINES, *JSON_SUFFIXES, *PLAIN_TABLES, *PACKED_TABLES, WORKBOOK, ".txt", ".html", ".htm")


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFile:
    """A file that one worker must read alone while the others have nothing left to do."""

    name: str
    num_bytes: int
    hours: float  # On the clock.


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanCost:
    """Cost of a run."""

    files: int
    input_bytes: int
    shards: int
    workers: int
    memory_bytes: int  # Memory of all processes, where they are on one machine.
    disk_bytes: int  # Bytes of the work directory with the corpus, if all is kept.
    cpu_hours: float
    whole: WholeFile | None  # File that the run waits for; None: its work can be shared out.

    @property
    def hours(self) -> float:
        """On the clock, with a CPU for each worker."""
        return self.whole.hours if self.whole else self.cpu_hours / self.workers


def clean_cost(sizes: Mapping[str, int], clean: Clean, cpus: int) -> CleanCost:
    """Estimate the cost of a run from the bytes of each file, by name or URI.

    The CPUs are the workers where the settings name no number.
    """
    workers = clean.workers or cpus
    return CleanCost(
        files=len(sizes), input_bytes=sum(sizes.values()), workers=workers,
        shards=num_shards(sizes, clean.shard_bytes, workers), memory_bytes=clean_memory_bytes(workers),
        disk_bytes=int(DISK_PER_TEXT_BYTE * sum(text_bytes(*each) for each in sizes.items())),
        cpu_hours=sum(_cpu_s(*each) for each in sizes.items()) / 3_600,
        whole=_whole_file(sizes, clean.shard_bytes, workers),
    )  # fmt: skip


def sizes_of_inputs(recipe: Recipe) -> dict[str, int]:
    """Return the bytes of each file that `clean` reads, those of all sources whose corpus is not there already."""
    stage = STAGES["clean"]
    sizes: dict[str, int] = {}
    for part in recipes_of(stage, recipe):
        if not is_kept(stage, part):
            sizes |= storage.sizes(named_files(stage, part), files_key(stage, part))
    return sizes


def clean_memory_bytes(workers: int) -> int:
    """Return the memory of the stage on one machine, whatever the input; workers are 0 where they run elsewhere."""
    return DRIVER_BYTES + workers * PROCESS_BYTES


def num_shards(sizes: Mapping[str, int], shard_bytes: int, workers: int) -> int:
    """Estimate the number of shards; large files that cannot be cut make fewer."""
    total = sum(sizes.values())
    most = min(shard_bytes, max(4 * MIB, math.ceil(total / (4 * workers))))
    return math.ceil(total / most)


def _whole_file(sizes: Mapping[str, int], shard_bytes: int, workers: int) -> WholeFile | None:
    """Return the file that takes most time of those that cannot be cut, if it takes more than a worker's share."""
    uncut = {
        name: _cpu_s(name, size)
        for name, size in sizes.items()
        if name.lower().endswith(WHOLE) and size > shard_bytes
    }
    share_s = sum(_cpu_s(*each) for each in sizes.items()) / workers
    if not uncut or max(uncut.values()) <= share_s:
        return None
    name = max(uncut, key=lambda each: uncut[each])
    return WholeFile(name=name, num_bytes=sizes[name], hours=uncut[name] / 3_600)


def _cpu_s(name: str, size: int) -> float:
    lowered = name.lower()
    if lowered.endswith(HTML):
        unpacked = size * PACKED_HTML if lowered.endswith(".gz") else size
        return unpacked / 1e6 * CPU_S_PER_MB["html"]
    return text_bytes(name, size) / 1e6 * CPU_S_PER_MB["text"]


def text_bytes(name: str, size: int) -> float:
    """Estimate the text in a file; in one that no reader knows, as much as in plain text."""
    lowered = name.lower()
    fitting = [suffix for suffix in TEXT_PER_BYTE if lowered.endswith(suffix)]
    return size * (TEXT_PER_BYTE[max(fitting, key=len)] if fitting else 1.0)
