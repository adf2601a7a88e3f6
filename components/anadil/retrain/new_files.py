"""Files that came since a champion: text by source, and chats."""

import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

from anadil.artifacts import storage
from anadil.core.errors import AnadilError, DataError
from anadil.core.format import counted
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.retrain.lineage import PREFERENCE
from anadil.runtime.job import files_key, is_written, named_files, named_side_files, recipes_of

log = logging.getLogger(__name__)

READERS = 8
"""Files whose digests are taken at a time; boto3's client keeps ten connections."""
SHOWN = 3
MOST_BYTES = 32 * 1024
"""Room for the names of a source's new files. An argument of a command has 128 KiB. Source: execve(2), MAX_ARG_STRLEN."""
SIGNS = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Files of a source, compared with those that the champion has learnt."""

    sizes: Mapping[str, int]
    """Bytes of each file that is there."""
    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Learnt as other bytes. Text is not read again; chats are."""
    moved: tuple[str, ...] = ()
    """New names of bytes that were learnt."""
    gone: tuple[str, ...] = ()
    """Learnt, and not among the inputs any more."""
    num_held: int = 0
    """Learnt, and there as they were."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the new files."""
        return sum(self.sizes[uri] for uri in self.new)

    @property
    def unlearnt(self) -> tuple[str, ...]:
        """Files with bytes that were not learnt: new and changed ones."""
        return (*self.new, *self.changed)


NO_FILES = Inputs(sizes={})


def compare_inputs(recipe: Recipe, files: Mapping[str, Mapping[str, str]]) -> dict[str, Inputs]:
    """Return the inputs of each source that is read from files, '' for those of a recipe without sources.

    Args:
        recipe: Its patterns are expanded.
        files: Source -> URI -> digest of each file that was learnt.
    """
    stage, inputs = STAGES["clean"], {}
    for part in recipes_of(stage, recipe):
        source = next(iter(part.sources), "")
        if not is_written(part):
            held = files.get(source, {})
            inputs[source] = _compare(_sizes(named_files(stage, part), files_key(stage, part), held), held)
    return inputs


def compare_chats(recipe: Recipe, files: Mapping[str, str]) -> Inputs:
    """Return the files of chats and pairs, compared with the learnt `files`; none where the recipe names no chats."""
    stage = STAGES["finetune"]
    if not (patterns := named_files(stage, recipe)):
        return NO_FILES
    pairs = named_side_files(stage, recipe).get(PREFERENCE, ())
    return _compare(storage.sizes(patterns, stage.files.key) | storage.sizes(pairs, PREFERENCE), files)


def lines_of_chats(chats: Inputs) -> list[str]:
    """Say what is new of the chats, and what is not learnt again."""
    if not chats.sizes and not chats.gone:
        return []
    lines = [f"chats: {counted(len(chats.new), 'new file')}, {counted(chats.num_held, 'file')} as before"]
    if chats.changed:
        lines.append(f"chats: changed since they were learnt, and learnt again: {_listed(chats.changed)}")
    if chats.gone:
        lines.append(f"chats: not among the inputs any more, and not learnt again: {_listed(chats.gone)}")
    return lines


def lines_of(source: str, inputs: Inputs) -> list[str]:
    """Say what is new of a source, and what is left out and why."""
    name = f"{source}: " if source else ""
    lines = [f"{name}{counted(len(inputs.new), 'new file')}, {counted(inputs.num_held, 'file')} as before"]
    if inputs.changed:
        lines.append(
            f"{name}changed since the champion read them, and not read again: {_listed(inputs.changed)}; put new text into "
            "new files, or train on all of it anew: --from-base"
        )
    if inputs.moved:
        lines.append(
            f"{name}left out, since the champion has read their bytes under other names: {_listed(inputs.moved)}"
        )
    if inputs.gone:
        lines.append(
            f"{name}not among the inputs any more: {_listed(inputs.gone)}; their text stays in the corpus, and --from-base takes "
            "it out"
        )
    return lines


def _sizes(patterns: Iterable[str], key: str, held: Mapping[str, str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for pattern in patterns:
        try:
            sizes |= storage.sizes((pattern,), key)
        except DataError as error:
            # Files that were read may have been put away since. A pattern that never named one is a mistake.
            if not any(_is_named(uri, pattern) for uri in held):
                raise
            log.warning("%s", error)
    return sizes


def _is_named(uri: str, pattern: str) -> bool:
    """Return True if a pattern, path or directory would name a file if that were there."""
    place = pattern if "://" in pattern else str(Path(pattern).expanduser())
    # `*` of fnmatch passes over folders, so it stands for `**/` too.
    return uri.startswith(f"{place.rstrip('/')}/") or fnmatchcase(uri, re.sub(r"\*\*/?", "*", place))


def _compare(sizes: Mapping[str, int], held: Mapping[str, str]) -> Inputs:
    # `clean` takes the digests of new files once more, for its key; those of held ones tell who changed a file.
    with ThreadPoolExecutor(READERS, thread_name_prefix="digests") as pool:
        fingerprints = pool.map(lambda uri: storage.input_store(uri).fingerprint(uri), sizes)
        digests = dict(zip(sizes, fingerprints, strict=True))
    known = set(held.values())
    unseen = [uri for uri in sizes if uri not in held]
    new = tuple(uri for uri in unseen if digests[uri] not in known)
    changed = tuple(uri for uri in sizes if held.get(uri, digests[uri]) != digests[uri])
    return Inputs(
        sizes=sizes,
        new=new,
        changed=changed,
        moved=tuple(uri for uri in unseen if digests[uri] in known),
        gone=tuple(uri for uri in held if uri not in sizes),
        num_held=len(sizes) - len(unseen) - len(changed),
    )


def _listed(uris: Sequence[str]) -> str:
    names = ", ".join(uri.rsplit("/", 1)[-1] for uri in uris[:SHOWN])
    return f"{counted(len(uris), 'file')} ({names}{', ...' if len(uris) > SHOWN else ''})"


def short_inputs(new: Sequence[str], others: Collection[str], key: str) -> tuple[str, ...]:
    """Return names or patterns of new files, and of no `others` of the same inputs."""
    if _size(new) <= MOST_BYTES:
        return tuple(new)
    patterns = tuple(
        pattern
        for folder, names in groupby(sorted(new), _folder)
        for pattern in _of_folder(folder, list(names), [each for each in others if _folder(each) == folder])
    )
    if _size(patterns) > MOST_BYTES:
        raise DataError(
            f"{key}: the names of {counted(len(new), 'new file')} take {_size(patterns):,} bytes in the recipe of the "
            f"retraining, which has room for {MOST_BYTES:,}; put the files of a week into a folder of their own, or let their "
            "names begin as no earlier one does, such as with the date"
        )
    return patterns


def _of_folder(folder: str, new: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    if any(SIGNS.intersection(name) for name in new):
        yield from new
        return
    for pattern, names in _covers(folder, new, others):
        # Files that no pattern of the recipe names may lie there too.
        yield from (pattern,) if _matches(pattern) == set(names) else names


def _covers(begin: str, new: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield patterns for names that begin alike, each with its names: as few as leave all others out."""
    if len(new) == 1:
        yield new[0], new
    elif not any(name.startswith(begin) for name in others):
        endings = {os.path.splitext(name)[1] for name in new}  # noqa: PTH122  also of URIs
        yield f"{begin}*{endings.pop() if len(endings) == 1 else ''}", new
    else:
        for longer, names in groupby(new, lambda name: name[: len(begin) + 1]):
            group = list(names)
            yield from [(longer, group)] if group == [begin] else _covers(longer, group, others)


def _matches(pattern: str) -> set[str]:
    try:
        return set(storage.input_store(pattern).sizes(pattern))
    except AnadilError:
        return set()


def _folder(name: str) -> str:
    return name[: name.rfind("/") + 1]


def _size(names: Sequence[str]) -> int:
    return len(json.dumps(names))
