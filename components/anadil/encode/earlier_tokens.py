"""Tokens that a retraining takes of its champion: shards and blocks of the files that both corpora hold.

A corpus of `clean.since` begins with the files of the earlier corpus. Their shards and blocks stay byte for byte, so that
the cost is that of the new files, and a position in the earlier text means the same in both artifacts.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.local_directory import link
from anadil.artifacts.prefetch import fetch_from, fill
from anadil.artifacts.random_access import bytes_at
from anadil.artifacts.uri import join
from anadil.core.errors import IntegrityError
from anadil.core.format import counted
from anadil.core.stages import STAGES
from anadil.encode.blocks import Span
from anadil.encode.tensor_file import BLOCK_BYTES, DATA_BEGIN, TensorFile, size_of
from anadil.encode.tokens_file import BlockFacts, ShardFacts, TokensFacts, read_facts
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import INPUT, RESULT_VERSION
from anadil.runtime.job import Copy, word_of
from anadil.text.corpus import CorpusPart, read_ids

log = logging.getLogger(__name__)

EXCLUDED = "excluded.jsonl"
"""File of an artifact `overlap`: the documents that are left out, with a reason for each."""
KINDS = ("corpus", "tokens", "overlap")
"""Artifacts of the champion that are looked at."""


def champion_places(recipe: Recipe, source: str) -> dict[str, str]:
    """Kind -> URI of the champion's artifacts of a source; empty without a champion that knows the source."""
    champion = recipe.retrain.champion if recipe.retrain else None
    named = champion.artifacts if champion else {}
    places = {kind: named[word_of(kind, source)] for kind in KINDS if word_of(kind, source) in named}
    return places if "corpus" in places else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionTokens:
    """Finished tokens of the champion's corpus, made by the same tokenizer."""

    uri: str
    manifest: Manifest
    facts: TokensFacts
    remade: frozenset[str]
    """Shards, by the names of their files, of which a document is left out now and was not, or the reverse."""

    def shards(self, part: CorpusPart) -> dict[str, ShardFacts]:
        """File name without its ending -> shard that is taken as it is."""
        listed = self.facts.train if part == "train" else self.facts.heldout
        return {_stem(shard.file): shard for shard in listed if _stem(shard.file) not in self.remade}

    def spans(self, length: int) -> list[Span]:
        """Blocks of the training part; those of which a shard is made anew are packed anew, too."""
        return [
            Span(
                first_shard=block.first_shard, num_shards=block.num_shards,
                stored=block if self.facts.sequence_length == length and not self._is_changed(block) else None,
            )
            for block in self.facts.blocks
        ]  # fmt: skip

    def _is_changed(self, block: BlockFacts) -> bool:
        listed = self.facts.train[block.first_shard : block.first_shard + block.num_shards]
        return any(_stem(shard.file) in self.remade for shard in listed)

    def opened(self, shard: ShardFacts) -> TensorFile:
        """Open a shard where it lies."""
        size = size_of(shard.num_bytes)
        place = bytes_at(join(self.uri, shard.file), size, first_byte=DATA_BEGIN, block_bytes=BLOCK_BYTES)
        return TensorFile(place=place, num_bytes=shard.num_bytes, table_crc=shard.crc32)

    def put(
        self, names: Mapping[str, str], out: Path, work: Path, copies: dict[str, Copy] | None
    ) -> dict[str, dict[str, str | int]]:
        """Put files into an artifact; return the manifest entries of those in `out`.

        Args:
            names: File of these tokens -> its name in the new artifact.
            out: Directory of the new artifact.
            work: Directory for files that are fetched.
            copies: Files that S3 copies, to be filled; None: the new artifact stays on this machine.
        """
        entries = {name: self.manifest.files[name] for name in names}
        folder = Path(self.uri)
        if "://" in self.uri:
            artifact.check_sizes(self.uri, self.manifest)
            if copies is not None:
                copies |= {
                    names[name]: Copy(uri=join(self.uri, name), entry=entry)
                    for name, entry in entries.items()
                }
                return {}
            folder = work / "earlier"
            fill(
                folder,
                entries,
                fetch_from(self.uri),
                self.uri,
                "set ANADIL_WORK to a directory on a larger disk",
            )
        for name, entry in entries.items():
            if "://" not in self.uri and _entry_of(folder / name) != entry:
                raise IntegrityError(
                    f"{self.uri}/{name}: differs from its manifest; {artifact.remedy_of(self.uri)}"
                )
            link(folder / name, out / names[name])
        return {names[name]: dict(entry) for name, entry in entries.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierPart:
    """Part of a corpus that the champion was trained on."""

    files: frozenset[str]
    """Names of files of the training part, without their endings."""
    tokens: ChampionTokens | None
    """None: there are none to use, and all files are encoded."""


def earlier_part(
    places: Mapping[str, str],
    corpus: Path,
    excluded: Path | None,
    is_usable: Callable[[TokensFacts], bool],
) -> EarlierPart | None:
    """Find the champion's part of a corpus; None if there is none.

    Args:
        places: Those of `champion_places`.
        corpus: The corpus of the retraining, local.
        excluded: File of its documents that are left out now.
        is_usable: True for tokens of the present tokenizer.
    """
    if not places:
        return None
    theirs = artifact.finished_manifest(places["corpus"], "corpus")
    ours = artifact.finished_manifest(str(corpus), "corpus")
    listed = {
        name: digest for name, digest in _digests(theirs).items() if name.startswith(("train/", "heldout/"))
    }
    if differing := [name for name, digest in listed.items() if _digests(ours).get(name) != digest]:
        log.warning(
            "%s: does not begin with the champion's corpus %s (%s differs), so all of its text counts as new",
            corpus, places["corpus"], differing[0],
        )  # fmt: skip
        return None
    files = frozenset(_stem(name) for name in listed if name.startswith("train/"))
    tokens = _champion_tokens(places, theirs, corpus, excluded, is_usable)
    return EarlierPart(files=files, tokens=tokens)


def _champion_tokens(
    places: Mapping[str, str],
    corpus_manifest: Manifest,
    corpus: Path,
    excluded: Path | None,
    is_usable: Callable[[TokensFacts], bool],
) -> ChampionTokens | None:
    uri = places.get("tokens", "")
    manifest = artifact.read_manifest(uri) if uri else None
    if manifest is None:
        log.warning(
            "%s: no finished tokens of the champion there, so all of the corpus is encoded",
            uri or "retrain.champion",
        )
        return None
    facts = read_facts(uri, manifest)
    is_current = manifest.origin.get(RESULT_VERSION) == str(STAGES["encode"].result_version)
    ids = _changed_ids(places.get("overlap", ""), manifest, excluded)
    if not is_current or not is_usable(facts) or facts.corpus != corpus_manifest.digest or ids is None:
        log.warning(
            "%s: tokens of another tokenizer, corpus, list or program; all of the corpus is encoded", uri
        )
        return None
    remade = frozenset(
        name
        for name in (_stem(shard.file) for shard in facts.train)
        if ids and not ids.isdisjoint(read_ids(corpus / "train" / f"{name}.jsonl.zst"))
    )
    if remade:
        log.info(
            "%s of the champion's tokens are made again: other documents are left out now",
            counted(len(remade), "shard"),
        )
    return ChampionTokens(uri=uri, manifest=manifest, facts=facts, remade=remade)


def _changed_ids(uri: str, tokens: Manifest, excluded: Path | None) -> frozenset[str] | None:
    """Documents that only one of the champion and this run leaves out; None if the champion's list is gone."""
    ours = _ids_of(excluded.read_bytes()) if excluded else frozenset[str]()
    if not (digest := tokens.origin.get(f"{INPUT}overlap")):
        return ours
    manifest = artifact.read_manifest(uri) if uri else None
    if manifest is None or manifest.digest != digest:
        return None
    return ours ^ _ids_of(storage.store(uri).read(join(uri, EXCLUDED)))


def _ids_of(rows: bytes) -> frozenset[str]:
    return frozenset(str(json.loads(row)["id"]) for row in rows.splitlines())


def _digests(manifest: Manifest) -> dict[str, str]:
    """File of a corpus -> digest of its texts, or of the file."""
    return {name: manifest.contents.get(name, str(entry["sha256"])) for name, entry in manifest.files.items()}


def _entry_of(path: Path) -> dict[str, str | int]:
    return artifact.file_entry(path) if path.is_file() else {}


def _stem(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[0]
