"""The checkpoint that a run begins with, for its processes: fetched, held, verified, compared with the run."""

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from anadil.artifacts import artifact
from anadil.artifacts.prefetch import copy_to_cache
from anadil.core.errors import DataError, IntegrityError
from anadil.core.stages import STAGES
from anadil.estimate.schedule import Schedule
from anadil.model.process_group import Group
from anadil.pretrain.checkpoint.dcp import VerifiedCheckpoint, read_metadata
from anadil.pretrain.checkpoint.directory import hold_open
from anadil.pretrain.checkpoint.folder import damage_of
from anadil.pretrain.checkpoint.replica import LOOK_S
from anadil.pretrain.checkpoint.start_point import KEY, StartPoint, check_start_point
from anadil.pretrain.resilience.loss_spikes import SpikeDetector
from anadil.recipe.pretrain import Faults
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import INPUT, origin_changes

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

    from anadil.pretrain.data.order import TrainingData

log = logging.getLogger(__name__)

TOKENS = "input tokens"
"""Begins the names of digests of packed text in the origin of a checkpoint."""
MOST_CHANGES = 8
"""Named of what differs from the other run."""


@contextmanager
def open_start_point(
    start: StartPoint, recipe: Recipe, origin: Mapping[str, str], data: "TrainingData", group: Group,
    heartbeat: Callable[[], None],
) -> Iterator[VerifiedCheckpoint]:  # fmt: skip
    """Open a checkpoint that training begins with; its state is that with which this run begins.

    Every process calls it. The other run does not remove the checkpoint meanwhile, where the file system has locks.
    """
    said = check_start_point(start, recipe, origin)
    with _held(start, group, heartbeat) as path:
        read: list[Metadata] = []
        group.run_everywhere(lambda: read.append(read_metadata(path, start.manifest.files)))
        if group.is_first:
            _tell(start, origin, [*said, *_other_texts(start, recipe, data)])
        yield VerifiedCheckpoint(path=path, state=start.state_here(recipe.pretrain), metadata=read[0])


@contextmanager
def _held(start: StartPoint, group: Group, heartbeat: Callable[[], None]) -> Iterator[Path]:
    """A local directory with the checkpoint's files, verified, which nobody removes."""
    with ExitStack() as held:
        if "://" in start.place:
            thread = held.enter_context(ThreadPoolExecutor(1, thread_name_prefix="start-point"))
            fetching = thread.submit(_fetch, start)
            # Every process has to come round, or its watchdog takes the download for a hang.
            while not all(group.gather("done" if wait([fetching], timeout=LOOK_S).done else "")):
                heartbeat()
            path = group.run_everywhere(fetching.result)[group.rank]
        else:
            path = Path(start.place)
            group.run_everywhere(lambda: held.enter_context(hold_open(path)))
            # Each process reads its share, so that 1 TiB is read once.
            damages = filter(None, group.run_everywhere(lambda: damage_of(path, group.rank, group.size)))
            for damage in damages:
                raise IntegrityError(f"{KEY}: {damage}; name another checkpoint")
        yield path


def _fetch(start: StartPoint) -> Path:
    try:
        return copy_to_cache(start.place, start.manifest)
    except IntegrityError:
        if artifact.read_manifest(start.place) is None:
            raise DataError(
                f"{KEY}: {start.place} was removed while it was fetched, since its run keeps the newest few; name another"
            ) from None
        raise


def _tell(start: StartPoint, origin: Mapping[str, str], said: list[str]) -> None:
    run = f" of {start.run}" if start.run else ""
    log.info("training begins after step %s%s: %s", f"{start.step:,}", run, start.place)
    for line in said:
        log.warning("%s", line)
    # That it has another begin is known.
    other = {name: text for name, text in origin.items() if name != f"{INPUT}{KEY}"}
    before = {name: text for name, text in start.manifest.origin.items() if name != f"{INPUT}{KEY}"}
    changes = origin_changes(before, other, STAGES["pretrain"].keys)
    if changes:
        more = f" and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
        log.info("other than in that run: %s%s", "; ".join(changes[:MOST_CHANGES]), more)


def _other_texts(start: StartPoint, recipe: Recipe, data: "TrainingData") -> Iterator[str]:
    """Say where each source begins whose text is another one than that of the checkpoint's run."""
    if recipe.continues_champion:  # other text is what it is for
        return
    theirs = {
        name.removeprefix(TOKENS).lstrip("."): digest
        for name, digest in start.manifest.origin.items()
        if name.startswith(TOKENS)
    }
    stands = _positions(start, recipe.pretrain.batch_size)
    for name, packed in data.sources.items():
        words, size = f"source {name}" if name else "the text", packed.num_sequences
        if name and name not in theirs:
            yield f"{KEY}: {words} is new: it begins with the first of its {size:,} sequences"
        elif theirs.get(name) != packed.stream.digest:
            passes, place = divmod(stands[name], size)
            yield (
                f"{KEY}: {words} is another text than in that run; it goes on at sequence {place + 1:,} of {size:,}, in "
                f"pass {passes + 1}, so what is new before that place comes with the next pass"
            )
    for name in sorted(theirs.keys() - data.sources.keys()):
        yield f"{KEY}: {f'source {name}' if name else 'the text'} of that run is left out; its tokens stay counted"


def _positions(start: StartPoint, batch_size: int) -> dict[str, int]:
    """Sequences of each source that come before the next batch."""
    detector = SpikeDetector(Faults())
    if start.state.anomalies:
        detector.restore(start.state.anomalies)
    number = detector.batch_of(start.step) * batch_size
    positions = {"": number}
    if saved := start.state.mixture.get("schedule"):
        schedule = TypeAdapter(Schedule).validate_python(saved)
        positions |= zip(schedule.names, schedule.positions(number), strict=True)
    return positions
