"""Add new documents to an earlier corpus: its files stay, its index stands for its documents.

The index of a corpus holds ids, exact keys, band keys and lengths of its documents. Who adds to the corpus reads
the index and no text, so that the cost is that of the new input.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anadil.artifacts import sealed_dir, storage
from anadil.artifacts.artifact import Manifest, check_sizes, finished_manifest, verify_files
from anadil.artifacts.local_directory import link
from anadil.artifacts.prefetch import fetch_from, fill
from anadil.artifacts.uri import join
from anadil.clean.dedup.find_duplicates import Verdicts
from anadil.clean.dedup.sorted_documents import FRAMES, Numbers, Signatures, write_keys
from anadil.clean.filters.judge_record import Settings
from anadil.clean.kernels.minhash import FOLDING, MINHASH_SEED
from anadil.core.errors import DataError, RecipeError
from anadil.core.json_text import write_json
from anadil.recipe.clean import Clean
from anadil.runtime.job import Copy, Job

INDEX = "index"
INDEX_META = f"{INDEX}/index.json"
INDEX_DOCUMENTS = 100_000
"""Rows of one file of the index: 15 MB with 14 bands."""
INDEX_COLUMNS = ("id_high", "id_low", "exact_high", "exact_low", "weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierCorpus:
    """A corpus whose documents are held."""

    uri: str
    folder: Path
    """Local, with its index, its held-out part and, unless they are copied, its other documents; every byte checked."""
    manifest: Manifest
    is_copied: bool
    """Its files go into the new artifact within S3, and its training documents never come here."""

    def index_files(self) -> list[str]:
        """Return the files of its index, in order."""
        return sorted(name for name in self.manifest.files if name.startswith(f"{INDEX}/part-"))

    def num_files(self, part: str) -> int:
        """Count the files of a part of it."""
        return sum(name.startswith(f"{part}/") for name in self.manifest.files)

    def write_columns(self, folder: Path) -> list[Path]:
        """Write its index in the form of shards without text, below a folder; return the folder of each."""
        folders = []
        for number, name in enumerate(self.index_files()):
            target = folder / f"held-{number:05}"
            key = str(self.manifest.files[name]["sha256"])
            if not sealed_dir.verify(target, {"key": key}):
                with sealed_dir.create(target, {"key": key}) as draft:
                    write_columns(np.load(self.folder / name), draft)
            folders.append(target)
        return folders

    def put_into(self, job: Job) -> None:
        """Put its files into the new artifact too."""
        for name, entry in self.manifest.files.items():
            is_part = _is_part(name)
            if is_part or name in self.index_files():
                if self.is_copied:
                    job.copies[name] = Copy(uri=join(self.uri, name), entry=entry)
                else:
                    link(self.folder / name, job.out / name)
            if is_part:
                job.contents[name] = self.manifest.contents[name]
        job.records.update(self.manifest.records)


def earlier_corpus(uri: str, settings: Settings, job: Job) -> EarlierCorpus:
    """Open the corpus that a recipe names as `clean.since`.

    Index and held-out part are fetched from S3, and the other documents only where the new corpus is made on this machine. Where
    S3 copies them, sizes are compared now; the new manifest has their digests, and a reader verifies them.
    """
    manifest = finished_manifest(uri, "corpus")
    if INDEX_META not in manifest.files:
        raise DataError(
            f"{uri}: this corpus has no index, so nothing can be added to it; make it again with this version"
        )
    is_remote = "://" in uri
    is_copied = is_remote and "://" in job.target
    folder = job.work / "since" if is_remote else Path(uri)
    if is_remote:
        check_sizes(uri, manifest)
        _check_meta(uri, settings)
        files = {
            name: entry
            for name, entry in manifest.files.items()
            if name.startswith((f"{INDEX}/", "heldout/")) or (_is_part(name) and not is_copied)
        }
        fill(folder, files, fetch_from(uri), uri, "set ANADIL_WORK to a directory on a larger disk")
    else:
        verify_files(folder, manifest, uri)
        _check_meta(uri, settings)
    return EarlierCorpus(uri=uri, folder=folder, manifest=manifest, is_copied=is_copied)


def write_index(
    out: Path, signatures: Signatures, verdicts: Verdicts, settings: Settings, first_file: int
) -> list[str]:
    """Write the index of the new documents that stay; return the names of all its files.

    Those before `first_file` are an earlier corpus's.
    """
    (out / INDEX).mkdir(exist_ok=True)
    write_json(out / INDEX_META, _meta(settings))
    names = [INDEX_META, *(f"{INDEX}/part-{number:05}.npy" for number in range(first_file))]
    for number, documents in enumerate(_batches(signatures, verdicts), start=first_file):
        kinds = [*((name, np.uint64) for name in INDEX_COLUMNS), ("bands", np.uint64, settings.minhash.bands)]
        table = np.zeros(len(documents), dtype=kinds)
        for name in INDEX_COLUMNS:
            table[name] = signatures.column(name, documents)
        table["bands"] = signatures.column("bands", documents).T
        names.append(f"{INDEX}/part-{number:05}.npy")
        np.save(out / names[-1], table)
    return names


def _batches(signatures: Signatures, verdicts: Verdicts) -> Iterator[Numbers]:
    left = np.empty(0, dtype=np.int64)
    for documents in signatures.by_id():
        new = documents[verdicts.is_kept(documents) & ~signatures.is_held(documents)]
        left = np.concatenate((left, new))
        while len(left) >= INDEX_DOCUMENTS:
            yield left[:INDEX_DOCUMENTS]
            left = left[INDEX_DOCUMENTS:]
    if len(left):
        yield left


def write_columns(table: Numbers, folder: Path) -> None:
    """Write rows of an index in the form of a shard without text."""
    for name in INDEX_COLUMNS:
        np.save(folder / f"{name}.npy", table[name])
    bands = np.ascontiguousarray(table["bands"].T)
    np.save(folder / "bands.npy", bands)
    write_keys(folder, table["exact_high"], bands)
    np.save(folder / "frames.npy", np.array([(len(table), 0)], dtype=FRAMES))


def _meta(settings: Settings) -> dict[str, object]:
    return {"language": settings.language.code, **key_settings(settings.recipe.clean)}


def key_settings(clean: Clean) -> dict[str, object]:
    """Return what decides the keys of an index."""
    return {
        "bands": clean.minhash_bands, "rows": clean.minhash_rows, "shingle": clean.minhash_shingle,
        "seed": MINHASH_SEED, "folding": FOLDING,
    }  # fmt: skip


def other_settings(theirs: Mapping[str, object], ours: Mapping[str, object]) -> str:
    """List the settings of an index that are not ours; empty for none."""
    return ", ".join(
        f"{key} {theirs.get(key)} there and {value} here"
        for key, value in ours.items()
        if theirs.get(key) != value
    )


def _is_part(name: str) -> bool:
    return name.split("/", maxsplit=1)[0] in ("train", "heldout")


def _check_meta(uri: str, settings: Settings) -> None:
    theirs, ours = json.loads(storage.store(uri).read(join(uri, INDEX_META))), _meta(settings)
    if theirs.get("folding") != FOLDING:
        raise DataError(
            f"clean.since: the index of {uri} was made by another version, whose keys took other differences for none "
            f"({theirs.get('folding', 'case')}; here {FOLDING}); copies would not be found, so make that corpus again with "
            "this version"
        )
    if theirs != ours:
        differing = other_settings(theirs, ours)
        raise RecipeError(
            f"clean.since: {uri} was made with other settings ({differing}); use the same settings or clean everything again"
        )
