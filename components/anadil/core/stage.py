"""The record of a stage: what it reads, writes and needs. Each stage's folder has one, `stage.py`."""

from dataclasses import dataclass
from typing import Literal

VIEWS = "views"
"""Kind of an input that stands for the artifacts with a view that earlier stages write and that are not named."""
OTHERS = "others"
"""The same for all other artifacts of earlier stages."""
Brought = Literal["need", "check", "view", "compare"]
CONTINUES = "continuing text"
"""Use of a model that was trained on running text."""
ANSWERS = "answering"
"""Use of a model that learnt to answer."""


@dataclass(frozen=True, slots=True)
class Input:
    """An artifact of another stage that a stage reads."""

    kind: str
    optional: bool = False
    """True if the stage can do without it: a run without chats makes no adapter."""
    how: Literal["files", "pieces", "waits"] = "files"
    """`files` are fetched. `pieces` are read where they lie; they decide nothing, since they follow from what they were made
    of. A stage that only `waits` for an artifact reads nothing of it, where the recipe makes it at all."""
    files: tuple[str, ...] = ()
    """Beginnings of the names of the files that are read; no others are fetched. Empty: all. `VIEWS`: the file of the view."""
    beside: bool = False
    """True if the stage also reads what lies beside the content: counts, times, samples."""
    either: bool = False
    """True if it is one of several of which the stage reads the first that the recipe makes."""
    only_if: str = ""
    """Recipe key (`section.key`) that must be true, or it is not read."""
    of_target: bool = False
    """True if those of sources in the taught language are read, and no others."""
    without_excluded: bool = False
    """True if documents that comparing the sources excluded are left out. The table adds the lists of them."""
    instead_of: str = ""
    """Artifact that its pieces are made of, and from which the stage makes them where it gets none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Outside files that a stage reads as its data."""

    key: str = ""
    """Recipe key (`section.key`) that names them; empty: there are none."""
    flag: str = ""
    """Name of their option on the command line."""
    if_none: Literal["refused", "skipped", "runs"] = "refused"
    """Fate of the stage where the recipe names none."""


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
    keys: tuple[str, ...] = ()
    """Recipe keys that decide the result, too, where they are read."""
    functions: bool = False
    """True if a value is `FILE.py:FUNCTION`. The file's content and the function decide the result, not the place."""
    reader: str = ""
    """`module:function` below `anadil`, which reads the files before a run, refuses what is wrong, and says what they hold."""
    or_names: bool = False
    """True if a value without `/` that ends in neither `.yaml` nor `.jsonl` is a name, not a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extends:
    """Artifact of an earlier run that a stage goes on from."""

    key: str = ""
    """Recipe key (`section.key`) that names it; empty: the stage goes on from nothing."""
    kinds: tuple[str, ...] = ()
    """Its kinds; empty: what the stage writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionParts:
    """Parts of the model released last that a stage takes, where there is one."""

    artifacts: tuple[str, ...] = ()
    """Artifacts that a retraining goes on from, as far as they are there."""
    model: bool = False
    """True if the stage reads the model too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerSource:
    """Marks a stage that a recipe with `sources` runs once for each of them."""

    key: str = ""
    """Key of a source that must be set, or the source goes without the step."""
    excludes: str = ""
    """File of the artifact that lists documents to leave out. The step of one source then reads the artifacts of all, in the
    recipe's order; without two it is skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of a stage's work that pods of a pipeline do beside each other, before its own step puts together what they made."""

    key: str
    """Recipe key (`section.table.key`) of the parts."""
    or_key: str
    """The key of all that there are, where that one names none."""
    one: str
    """Parameter of the step: the part of such a pod, empty in the step that collects."""
    made: str
    """Parameter of the step that collects: URIs of what the pods made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Image and requests of a stage's pod. The requests hold where neither the recipe nor a machine with GPUs says others."""

    image: str
    uses_model: bool = False
    """True if it runs the torch code in `model/`, and on a GPU where there is one."""
    rooms: tuple[str, ...] = ()
    """Folders of the package that the image holds for it, beside those of all images and of the stages that share it."""
    cpu: str = "4"
    memory: str = "16Gi"
    """Request and limit. Assumption: a small model fits, as do four CPUs."""
    retries: int | None = None
    """Times that a pipeline tries the pod again; None: as many as `cluster.restarts` says."""
    parts: Parts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Marks a stage that trains: it can be a job of its own, and starts torchrun where a machine has several GPUs."""

    progress_name: str
    """Name of the loop in its progress lines, where a job's backend reads figures out of the log."""
    figures: tuple[str, ...]
    """Figures of those lines."""
    costly: bool = False
    """True if it trains for hours or days: made again for recipe and inputs only, else by `--remake`."""
    most_processes: str = ""
    """Recipe key (`section.key`) of the most processes that it can use. Empty: as many as there are GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Marks a stage that writes a model which may be released."""

    name: str
    """Name in the scores."""
    kind: str = ""
    """Artifact that it is. The table fills it in."""
    folder: str = ""
    """Directory of the artifact that holds the whole model; empty: the artifact itself."""
    use: str
    """Use that it is trained and judged for."""
    colour: int
    """Number of its colour in charts."""
    checks: tuple[str, ...]
    """Checks of the gate that judge it."""
    shown: tuple[str, ...] = ()
    """Those of them that decide nothing unless the recipe says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the flow."""

    name: str
    summary: str
    """Help text: what it does."""
    writes: str
    stands_for: str = ""
    """Artifact in whose place its readers behind this stage take this one, where a run has made it. The table adds it to what they
    read."""
    result_version: int = 1
    """Raised by hand with each change of the program after which equal recipe and inputs give another result.

    It stands in the artifact's key, so that what an older program made is not taken for it. Neither the
    source nor the program's version does: a release that leaves a result alone makes nothing again.
    `tests/runtime/test_results.py` compares results with those of the last version and says what to do.
    """
    keys: tuple[str, ...]
    """Recipe keys and sections that decide the result."""
    reads: tuple[Input, ...] = ()
    files: Files = Files()
    side_files: tuple[SideFiles, ...] = ()
    """Further outside files; their content, too, decides the result."""
    models: str = ""
    """Recipe key of models, directories or hub ids, that it reads beside the base; their files decide the result, too."""
    extends: Extends = Extends()
    champion: ChampionParts = ChampionParts()
    per_source: PerSource | None = None
    only_if: str = ""
    """Recipe key (`section.key`) that must be set, or a run goes without the stage."""
    pod: Pod
    training: Training | None = None
    candidate: Candidate | None = None
    brings: tuple[Brought, ...] = ()
    """Light modules of its folder, which the planner, the checks before a start, the report and the comparison of runs load."""

    @property
    def costly(self) -> bool:
        """True if it trains for hours or days."""
        return self.training is not None and self.training.costly

    @property
    def compares(self) -> bool:
        """True if the step of one source reads the artifacts of all."""
        return bool(self.per_source and self.per_source.excludes)

    @property
    def words(self) -> tuple[str, ...]:
        """Kinds of the artifacts that it reads, in order."""
        return tuple(each.kind for each in self.reads)

    def input(self, kind: str) -> Input:
        """The input of a kind; raises StopIteration for one that the stage does not read."""
        return next(each for each in self.reads if each.kind == kind)

    def may_lack(self, kind: str) -> bool:
        """Return True if some recipe runs the stage without this artifact."""
        each = self.input(kind)
        return each.optional or each.either or each.how == "waits" or bool(each.only_if)
