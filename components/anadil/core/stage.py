"""A stage of the flow, and what it may read beside artifacts: the rows of the table in `stages.py`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFiles:
    """Outside files that a stage reads beside its data: lists, and what it compares its data with."""

    key: str
    """Recipe key (`section.key`, or one in a section of it) that names them: one path or several."""
    only_if: str = ""
    """Recipe key that must be true, or they are not read."""
    names: tuple[str, ...] = ()
    """Names of the files that are read of a directory; empty: all."""
    of_language: str = ""
    """File of a language's built-in texts that the id of a language stands for."""
    or_names: bool = False
    """True if a value without `/` that ends in neither `.yaml` nor `.jsonl` is a name, not a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the flow."""

    name: str
    reads: tuple[str, ...] = ()
    """Artifacts of other stages."""
    optional: tuple[str, ...] = ()
    """Those of them that it can do without: a run without chats makes no adapter."""
    streams: tuple[str, ...] = ()
    """Those of them that it reads by pieces where they lie: they are not copied to its machine. They decide nothing by
    themselves, since they follow from what they were made of."""
    either: tuple[str, ...] = ()
    """Those of them of which it reads the first that the recipe makes, and no other."""
    waits: tuple[str, ...] = ()
    """Those of them that it only waits for, where the recipe makes them: it reads nothing of them, and they decide nothing."""
    parts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Those of them of which it reads only files whose names begin so, each with these beginnings; no others are fetched."""
    only_with: tuple[tuple[str, str], ...] = ()
    """Those of them that it reads only where a recipe key (`section.key`) is true, each with that key."""
    instead_of: str = ""
    """The one that `streams` are made of, and which is read in their place; empty: the stage goes without them."""
    writes: str
    result_version: int = 1
    """Raised by hand with each change of the program after which equal recipe and inputs give another result.

    It stands in the artifact's key, so that what an older program made is not taken for it. Neither the
    source nor the program's version does: a release that leaves a result alone makes nothing again.
    `tests/runtime/test_results.py` compares results with those of the last version and says what to do.
    """
    sections: tuple[str, ...]
    """Recipe keys that decide the result."""
    files: str = ""
    """Recipe key (`section.key`) of the outside files that the stage reads."""
    files_flag: str = ""
    """Name of their option on the command line."""
    side_files: tuple[SideFiles, ...] = ()
    """Further ones; their content, too, decides the result."""
    models: str = ""
    """Recipe key of models, directories or hub ids, that it reads beside the base; their files decide the result, too."""
    per_source: bool = False
    """True if a recipe with `sources` runs it once for each of them."""
    source_key: str = ""
    """Key of a source that must be set, or the source goes without the step: only what the base writes is written."""
    reads_all: bool = False
    """True if the step of one source reads the artifacts of all, in the recipe's order; without two it is skipped."""
    of_target: bool = False
    """True if it reads what is made of sources in the language that is taught, and of no other."""
    extends: str = ""
    """Recipe key (`section.key`) of what an earlier run made and the stage goes on from."""
    extends_kinds: tuple[str, ...] = ()
    """Its kinds, where they are others than what the stage writes."""
    of_champion: tuple[str, ...] = ()
    """Artifacts of the champion that a retraining goes on from; one that is gone is done without."""
    without_files: Literal["refused", "skipped", "runs"] = "refused"
    """Fate of the stage where the recipe names none of them."""
    only_if: str = ""
    """Recipe key (`section.key`) that must be set, or a run goes without the stage."""
    image: str
    """Name of the image that holds it."""
    rooms: tuple[str, ...] = ()
    """Folders of the package that its image holds, beside its own and those of all images."""
    cpu: str = "4"
    """CPUs that its pod asks for, where the recipe does not say and no machine with GPUs is named."""
    memory: str = "16Gi"
    """Memory, request and limit, in the same case. Assumption: a small model fits, as do four CPUs."""
    retries: int | None = None
    """Times that a pipeline tries its pod again; None: as many as `cluster.restarts` says."""
    launchable: bool = False
    """True if it trains, and so can be a job of its own."""
    progress_name: str = ""
    """Name of the loop in its progress lines, where a job's backend reads figures out of the log."""
    figures: tuple[str, ...] = ()
    """Those of its last line."""
    uses_model: bool = False
    """True if it runs the torch code in `model/`, and on a GPU where there is one."""
    reads_champion: bool = False
    """True if it also reads the model that was released last, where there is one."""
    reads_beside: bool = False
    """True if it also reads what lies beside the content of artifacts: counts, times, samples."""
    costly: bool = False
    """True if it trains for hours or days: made again for recipe and inputs only, else by `--remake`."""
    distributed: bool = False
    """True if it starts torchrun by itself where a machine has several GPUs."""
    most_processes: str = ""
    """Recipe key (`section.key`) of the most processes that it can use; without one, as many as there are GPUs."""
    summary: str
    """Help text: what it does."""

    def may_lack(self, word: str) -> bool:
        """Return True if some recipe runs the stage without this artifact."""
        return word in (*self.optional, *self.either, *self.waits, *dict(self.only_with))
