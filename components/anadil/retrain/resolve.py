"""A recipe's retraining: the champion, what came since, and the recipe that teaches it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from anadil.core.format import counted, human_bytes
from anadil.recipe.sections import Recipe
from anadil.retrain.champion import ReleasedModel, find_released
from anadil.retrain.changes import refuse_or_tell
from anadil.retrain.derive import derived_recipe, recipe_from_base
from anadil.retrain.lineage import Lineage, lineage_of
from anadil.retrain.new_files import Inputs, compare_inputs, lines_of

State = Literal["new", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Result of `resolve`."""

    recipe: Recipe
    """Derived from the user's; where nothing is new, the user's."""
    state: State
    champion: ReleasedModel
    lines: tuple[str, ...]
    """For people: the champion, what is new, what follows of changes."""
    lineage: Lineage | None = None
    """None with `from_base`, which needs none of it."""
    inputs: Mapping[str, Inputs] = field(default_factory=dict)
    """Source -> its files; empty with `from_base`."""

    @property
    def num_files(self) -> int:
        """New files of all sources."""
        return sum(len(each.new) for each in self.inputs.values())


def resolve(
    recipe: Recipe, *, argument: str = "RECIPE", from_base: bool = False, default_tracking: str | None = None
) -> Resolution:
    """Find the champion and the files that came since, and derive the recipe of the retraining.

    Args:
        recipe: The user's.
        argument: The recipe as the user named it, for remedies.
        from_base: Keep nothing of the champion, and only compare with it.
        default_tracking: Registry where neither the recipe nor MLFLOW_TRACKING_URI names one.

    Raises:
        AnadilError: As `find_released`, `lineage_of`, `refuse_or_tell` and `derived_recipe`.
    """
    champion = find_released(recipe, argument, default_tracking)
    lines = [f"champion: {champion.name} version {champion.version}, {champion.uri}"]
    if from_base:
        lines.append("from the base: all files are read, and the result is compared with the champion")
        derived = recipe_from_base(recipe, champion)
        return Resolution(recipe=derived, state="new", champion=champion, lines=tuple(lines))
    # The champion's own root and that of its recipe are looked in first.
    lineage = lineage_of(champion, [recipe.storage.root] if recipe.storage.root else [])
    lines += refuse_or_tell(recipe, lineage)
    inputs = compare_inputs(recipe, lineage.files)
    for source, each in inputs.items():
        lines += lines_of(source, each)
    state: State = "new" if any(each.new for each in inputs.values()) else "nothing"
    derived = recipe
    if state == "new":
        derived = derived_recipe(recipe, lineage, inputs)
        lines += _lines_of_run(derived, lineage, inputs)
    else:
        lines.append("no new text: no file of the inputs is new to the champion; nothing to do")
    return Resolution(
        recipe=derived, state=state, champion=champion, lines=tuple(lines), lineage=lineage, inputs=inputs
    )


def _lines_of_run(derived: Recipe, lineage: Lineage, inputs: Mapping[str, Inputs]) -> Iterator[str]:
    """Say what the retraining reads, keeps and begins with."""
    assert derived.retrain is not None
    size = human_bytes(sum(each.num_bytes for each in inputs.values()))
    yield (
        f"new: {counted(sum(len(each.new) for each in inputs.values()), 'file')}, {size}; taken as they are: "
        f"{', '.join(sorted(derived.retrain.keeps))}"
    )
    start = derived.pretrain.start_from
    begin = (
        "weights of the champion" if start == lineage.places["model"] else "plateau checkpoint, with moments"
    )
    yield f"training begins with the {begin}: {start}"
