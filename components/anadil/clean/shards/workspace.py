"""Folder in which a run of the stage keeps what is done, so that a killed one resumes."""

import functools
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anadil.artifacts import sealed_dir
from anadil.artifacts.uri import MANIFEST
from anadil.clean.dedup.sorted_documents import Signatures
from anadil.clean.filters.judge_record import Settings
from anadil.clean.filters.lists import compile_lists
from anadil.clean.read.text_cut import txt_document_of
from anadil.clean.shards.map_shard import MapTask, remove_notes
from anadil.clean.shards.shards import Shard, correct_starts, plan_shards, read_plan, versions_of, write_plan
from anadil.clean.shards.shared_sentences import TrimTask
from anadil.clean.shards.since import EarlierCorpus
from anadil.clean.write.accounts import limits_in_force
from anadil.clean.write.corpus_parts import CorpusFile, FirstLines, WriteTask
from anadil.clean.write.row_files import RowsTask, cut_rows
from anadil.clean.write.shard_output import FACTS
from anadil.core.json_text import json_sha256, read_json
from anadil.core.stages import STAGES
from anadil.runtime.cache_key import code_digest, recipe_origin
from anadil.runtime.job import Job
from anadil.text.language import load_language

PLAN, DOCUMENTS = "plan.json", "documents.npy"
LATER_KEYS = frozenset(
    f"recipe clean.{key}"
    for key in ("inputs", "heldout_fraction", "heldout_max_documents", "max_bad_records")
)
"""Keys that matter after the shards are done, or that the plan holds."""


class Workspace:
    """Folders and keys of everything that a run makes before the artifact."""

    def __init__(self, job: Job, num_workers: int, earlier: EarlierCorpus | None) -> None:
        """Take up the plan of an earlier start, or make one for so many workers: the result does not depend on them."""
        self._job = job
        self._earlier = earlier
        origin = recipe_origin(job.recipe, STAGES["clean"].keys)
        settings = {name: text for name, text in origin.items() if name not in LATER_KEYS}
        self._key = _hash(
            settings,
            job.recipe.clean.shard_bytes,
            code_digest(STAGES["clean"]),
            job.recipe.clean.filters,
            versions_of(job.files),
            {key: versions_of(uris) for key, uris in job.side_files.items()},
        )
        place = job.work / "clean"
        self._folder = place / self._key
        for other in place.glob("*"):
            if other != self._folder:
                shutil.rmtree(other, ignore_errors=True)  # of other inputs or settings
        self._folder.mkdir(parents=True, exist_ok=True)
        self.candidates_folder, self.heldout_folder = self._folder / "candidates", self._folder / "heldout"
        sealed_dir.remove_drafts(self._folder)
        self._is_trimmed = self._is_ranked = False
        self._plan = self._folder / PLAN
        if not self._plan.exists():
            clean, language = job.recipe.clean, job.recipe.language
            plan = plan_shards(
                job.files,
                clean.shard_bytes,
                num_workers,
                txt_document_of(job.recipe),
                load_language(language).code,
            )
            write_plan(self._plan, plan)
        self.shards: list[Shard] = read_plan(self._plan)

    @functools.cached_property
    def lists_folder(self) -> Path | None:
        """Folder of the recipe's compiled lists; None: it names none."""
        if not self._job.side_files:
            return None
        fill = functools.partial(compile_lists, self._job.recipe, self._job.side_files)
        return sealed_dir.filled(self._folder / "lists", {"key": self._key}, fill)

    @property
    def shard_folders(self) -> list[Path]:
        """Folders of the output of each shard."""
        kind = "trimmed" if self._is_trimmed else "shard"
        return [self._folder / f"{kind}-{shard.number:05}" for shard in self.shards]

    @functools.cached_property
    def held_folders(self) -> list[Path]:
        """Folders of the columns of the earlier corpus."""
        return self._earlier.write_columns(self._folder) if self._earlier else []

    @property
    def dedup_folder(self) -> Path:
        """Folder of the verdicts of dedup, and of the share of the best behind it."""
        if self._is_ranked:
            return self._folder / "ranked"
        return self._folder / ("dedup-trimmed" if self._is_trimmed else "dedup")

    @property
    def shared_folder(self) -> Path:
        """Folder of the sentences that documents share."""
        return self._folder / "shared"

    def rank(self) -> Path:
        """Take the verdicts of the share of the best from now on. Return their folder."""
        self._is_ranked = True
        return self.dedup_folder

    def trim_tasks(self) -> list[TrimTask]:
        """Make a task for each shard that is written again, and take what they write for the shards from now on."""
        shards, key = self.shard_folders, self.dedup_key
        self._is_trimmed = True
        del self.dedup_key
        return [
            TrimTask(
                shard=shard, shared=self.shared_folder, recipe=self._job.recipe, lists=self.lists_folder,
                folder=folder, key=key,
            )
            for shard, folder in zip(shards, self.shard_folders, strict=True)
        ]  # fmt: skip

    @functools.cached_property
    def dedup_key(self) -> str:
        """Hash of what decides the verdicts of dedup: the manifests of all shards."""
        return _hash([read_json(folder / MANIFEST) for folder in (*self.held_folders, *self.shard_folders)])

    @functools.cached_property
    def heldout_key(self) -> str:
        """Hash of what decides which documents are held out."""
        clean = self._job.recipe.clean
        return _hash(self.dedup_key, clean.heldout_fraction, clean.heldout_max_documents)

    def runs_folder(self, shard: Path) -> Path:
        """Folder of the runs that a shard holds."""
        return self._folder / f"runs-{shard.name}"

    def write_tasks(
        self, files: Sequence[CorpusFile], signatures: Signatures, directions: int
    ) -> list[WriteTask]:
        """Make a task for each file of the corpus; `directions` are documents that a record becomes."""
        shards, first_lines = tuple(self.shard_folders), tuple(self.first_lines())
        return [
            WriteTask(
                file=file, shards=shards, first_lines=first_lines, verdicts=self.dedup_folder,
                heldout=self.heldout_folder / DOCUMENTS, first_document=signatures.num_held,
                folder=self._folder / f"{file.part}-{file.number:05}", key=_hash(self.heldout_key, asdict(file)),
                directions=directions,
            )
            for file in files
        ]  # fmt: skip

    def rows_tasks(self, signatures: Signatures, settings: Settings) -> list[RowsTask]:
        """Make a task for each file of rows."""
        num_rows = [facts["clean"]["counts"]["documents_in"] for facts in self.facts()]
        reported, limits = settings.reported, limits_in_force(settings.limits_of_rules)
        starts = signatures.starts[len(self.held_folders) :].tolist()
        return [
            RowsTask(
                number=number, slices=slices, shards=tuple(self.shard_folders), held=tuple(self.held_folders),
                verdicts=self.dedup_folder, reported=reported, limits=limits, folder=self._folder / f"rows-{number:05}",
                key=_hash(self.dedup_key, number, sorted(reported), limits),
            )
            for number, slices in enumerate(cut_rows(self.shard_folders, num_rows, starts, self.first_lines()))
        ]  # fmt: skip

    def map_tasks(self) -> list[MapTask]:
        """Make a task for each shard."""
        return [
            MapTask(
                shard=shard, recipe=self._job.recipe, lists=self.lists_folder, folder=folder,
                key=_hash(self._key, asdict(shard)),
            )
            for shard, folder in zip(self.shards, self.shard_folders, strict=True)
        ]  # fmt: skip

    def correct_cuts(self) -> list[MapTask]:
        """Let ranges of WARC files begin where those before them have ended; return the tasks to do again.

        Who reads from the middle of a file may take what a page shows for a record. Who reads from the beginning
        knows better, so that range after range becomes what it is without cuts.
        """
        corrected = correct_starts(self.shards, [facts["read"] for facts in self.facts()])
        changed = [new.number for old, new in zip(self.shards, corrected, strict=True) if new != old]
        if not changed:
            return []
        self.shards = corrected
        write_plan(self._plan, corrected)
        for number in changed:
            remove_notes(self.shard_folders[number])  # whose records are numbered otherwise now
        tasks = self.map_tasks()
        return [tasks[number] for number in changed]

    def num_done(self) -> int:
        """Count the shards that are done."""
        return sum((folder / MANIFEST).exists() for folder in self.shard_folders)

    def facts(self) -> Iterator[dict[str, Any]]:
        """Yield the facts of each shard."""
        for folder in self.shard_folders:
            yield read_json(folder / FACTS)

    @functools.cache  # noqa: B019  one workspace for one run
    def first_lines(self) -> list[FirstLines]:
        """Return for each shard the lines of a file before those of its ranges that begin within the file."""
        seen: Counter[str] = Counter()
        files = []
        for shard, facts in zip(self.shards, self.facts(), strict=True):
            files.append({part.name: seen[part.name] for part in shard.ranges if part.start})
            for part, stats in zip(shard.ranges, facts["read"], strict=True):
                seen[part.name] += stats["lines"]
        return files


def _hash(*causes: object) -> str:
    """Hash what decides a folder's content, given as JSON values."""
    return json_sha256(causes)[:32]
