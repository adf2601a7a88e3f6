"""Count or estimate a run's text by source, before anything runs.

The finished artifacts of this recipe say it best. Where there are none, the sizes of the files do, with the bytes that a
token is taken to have.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import artifacts_below, read_table
from anadil.artifacts.json_values import JSON_SUFFIXES, PACKED_JSON
from anadil.artifacts.line_reader import PACKED_LINES, PLAIN_LINES
from anadil.artifacts.separated_file import PACKED_TABLES, PLAIN_TABLES
from anadil.artifacts.workbook import WORKBOOK
from anadil.core.errors import AnadilError
from anadil.core.format import GIB, MIB
from anadil.core.stages import PIECES, STAGES, WRITERS, brought
from anadil.estimate.stage_memory import written_tokens
from anadil.estimate.text_use import BYTES_PER_TOKEN, TextSize, plan_text
from anadil.recipe.clean import Clean
from anadil.recipe.retrain import part_name
from anadil.recipe.sections import Recipe
from anadil.runtime import job
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.check import CheckResult, passed, skipped
from anadil.runtime.flow import Step, flow_of, recipe_of_step
from anadil.runtime.planned_artifact import MadeArtifact

log = logging.getLogger(__name__)

LAST = WRITERS.get(PIECES, STAGES["clean"])  # Stage that counts the text.
EPOCHS = "epochs"  # Name of the check.
FILE = "file "  # Begins the names of outside files in an origin.
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


def text_of(recipe: Recipe, root: str | None = None) -> dict[str, TextSize]:
    """Return the text of each source, '' for the only one, of each part in a retraining; nothing where one is not seen.

    Files are measured where an artifact is missing; `root` holds the artifacts where the recipe names no place.
    """
    try:
        made = _finished(recipe, recipe.storage.root or root)
        if recipe.continues_champion:
            return _week_text(recipe, made)
        sizes = {
            next(iter(part.sources), ""): _size_of(part, made)
            for part in job.recipes_of(STAGES["clean"], recipe)
        }
    except AnadilError as error:
        log.debug("the size of the text is not known: %s", error)
        return {}
    # A schedule follows from the sizes of all sources, so some of them say nothing.
    known = {name: size for name, size in sizes.items() if size}
    return known if len(known) == len(sizes) else {}


def inspect_text(recipe: Recipe, root: str | None = None) -> Iterator[CheckResult]:
    """Say how often training passes over each source."""
    _, plan = plan_text(recipe.as_planned, text_of(recipe, root))
    if not plan.uses:
        yield skipped(EPOCHS, "the size of the text is not known here, so passes over it are not counted")
    for each in plan.uses:
        yield passed(EPOCHS, each.line(), each.remedy())
    if plan.fault:
        remedy = f"the run may be refused; anadil run --until {LAST.name} counts the tokens"
        yield passed(EPOCHS, plan.fault, remedy)


def _week_text(recipe: Recipe, made: Mapping[str, MadeArtifact]) -> dict[str, TextSize]:
    """Text of a retraining by part: the champion's by its tokens, new text by this run's, or else by the sizes of its files."""
    assert recipe.retrain is not None
    assert recipe.retrain.champion is not None
    text: dict[str, TextSize] = {}
    for part in job.recipes_of(STAGES["clean"], recipe):
        source = next(iter(part.sources), "")
        earlier, per_token = None, BYTES_PER_TOKEN
        if place := recipe.retrain.champion.artifacts.get(job.word_of(PIECES, source)):
            manifest = artifact.finished_manifest(place, PIECES)
            earlier = text[part_name(source, is_new=False)] = _counted(place, manifest)
            per_token = (earlier.text_bytes or 0) / max(1, earlier.tokens) or per_token
        if recipe.retrain.kept(job.word_of("corpus", source)):
            continue
        tokens = made.get(job.word_of(PIECES, source))
        new = (
            _counted(tokens.uri, tokens.manifest, only_new=True) if tokens else _size_of(part, {}, per_token)
        )
        if new and new.tokens:
            text[part_name(source, is_new=True)] = new
    return text


def _counted(uri: str, manifest: Manifest, *, only_new: bool = False) -> TextSize:
    size: TextSize = brought(LAST, "need").text_size(uri, manifest, only_new=only_new)
    return size


def _size_of(
    recipe: Recipe, made: Mapping[str, MadeArtifact], per_token: float = BYTES_PER_TOKEN
) -> TextSize | None:
    """Size of the text of one source, or of the only one; None of files without a byte."""
    source = next(iter(recipe.sources), "")
    tokens, corpus = (made.get(job.word_of(word, source)) for word in (PIECES, "corpus"))
    if tokens:
        words = _train_share(corpus, "words_out") if corpus else None
        return replace(_counted(tokens.uri, tokens.manifest), words=words)
    if corpus:
        size, words = _train_share(corpus, "bytes_out"), _train_share(corpus, "words_out")
        documents = corpus.manifest.records["train"]
        estimate = TextSize(basis="corpus", tokens=0, text_bytes=size, words=words, documents=documents)
    elif written := written_tokens(recipe):
        size = round(written * BYTES_PER_TOKEN)
        estimate = TextSize(basis=STAGES["clean"].words[0], tokens=0, text_bytes=size)
    else:
        stage = STAGES["clean"]
        files = storage.sizes(job.named_files(stage, recipe), job.files_key(stage, recipe))
        size = round(sum(text_bytes(*each) for each in files.items()))
        estimate = TextSize(basis="files", tokens=0, text_bytes=size)
    # Sizes and words of pairs are those of the pairs, and both directions are trained on.
    directions = recipe.sources[source].directions if source else 1
    words = estimate.words and directions * estimate.words
    estimate = replace(estimate, text_bytes=directions * size, words=words)
    tokens_of_text = round(directions * size / per_token)
    most = recipe.sources[source].max_tokens if source else None
    return replace(estimate, tokens=min(tokens_of_text, most or tokens_of_text)) if tokens_of_text else None


def _train_share(corpus: MadeArtifact, count: str) -> int:
    """A count of the training documents; the corpus counts those held out with them."""
    stats, records = read_table(corpus.uri, corpus.manifest, "stats.json"), corpus.manifest.records
    total = sum(records.values())
    return round(int(str(stats.get(count, 0))) * records["train"] / total) if total else 0


def _finished(recipe: Recipe, root: str | None) -> dict[str, MadeArtifact]:
    """Finished artifacts of the steps up to `LAST`, by their word.

    One is of this recipe if all but the content of its files says so: to read terabytes for their digests would take
    hours. A file that has changed since changes the estimate little.
    """
    made: dict[str, MadeArtifact] = {}
    if root is None:
        return made
    steps = flow_of(recipe, LAST.name)
    planned = {step.writes for step in steps}
    for step in steps:
        if place := recipe.retrain.kept(step.writes) if recipe.retrain else "":
            manifest = artifact.finished_manifest(place, step.stage.writes)
            made[step.writes] = MadeArtifact(uri=place, manifest=manifest)
            continue
        # An artifact that no step of this run makes, such as that of a trial, is no input.
        reads = {word: of_run for word, of_run in step.reads_in_run(recipe).items() if of_run in planned}
        if made.keys() >= set(reads.values()):
            inputs = {word: made[of_run].manifest for word, of_run in reads.items()}
            if newest := _newest(step, recipe, inputs, root):
                made[step.writes] = newest
    return made


def _newest(step: Step, recipe: Recipe, inputs: dict[str, Manifest], root: str) -> MadeArtifact | None:
    stage = step.stage
    part, _ = recipe_of_step(stage, recipe, step.source)
    files = {f"{FILE}{uri}" for uri in job.external_files(stage, part)}
    files |= {
        f"{FILE}{uri} of {key}" for key, uris in job.external_side_files(stage, part).items() for uri in uris
    }
    # Without files, whose digests would be computed from every byte.
    expected = stage_origin(stage, part, inputs, ())
    for uri, manifest in artifacts_below([root], stage.writes):
        others = {name: text for name, text in manifest.origin.items() if not name.startswith(FILE)}
        if others == expected and manifest.origin.keys() - others.keys() == files:
            return MadeArtifact(uri=uri, manifest=manifest)
    return None


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
    for part in job.recipes_of(stage, recipe):
        if not job.is_kept(stage, part):
            sizes |= storage.sizes(job.named_files(stage, part), job.files_key(stage, part))
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
    seconds = {name: _cpu_s(name, size) for name, size in sizes.items()}
    cannot_cut = (name for name in sizes if name.lower().endswith(WHOLE) and sizes[name] > shard_bytes)
    uncut = {name: seconds[name] for name in cannot_cut}
    share_s = sum(seconds.values()) / workers
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
