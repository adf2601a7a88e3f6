"""A recipe's retraining: the champion, what came since, and the recipe that teaches it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from anadil.core.format import counted, human_bytes
from anadil.recipe.sections import Recipe
from anadil.report.read import table_of
from anadil.retrain.champion import ReleasedModel, find_released
from anadil.retrain.changes import changes_of, lines_of_changes
from anadil.retrain.derive import checked, derived_recipe, recipe_from_base, wants_new_chats, with_week_end
from anadil.retrain.lineage import Lineage, lineage_of
from anadil.retrain.new_files import (
    NO_FILES,
    Inputs,
    compare_chats,
    compare_inputs,
    lines_of,
    lines_of_chats,
)

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
    chats: Inputs = NO_FILES
    """Files of chats and pairs; none with `from_base`."""

    @property
    def num_files(self) -> int:
        """New files of all sources, and new or changed ones of chats."""
        return sum(len(each.new) for each in self.inputs.values()) + len(self.chats.unlearnt)

    @property
    def keeps_model(self) -> bool:
        """True where chats alone are new."""
        return bool(self.recipe.retrain and self.recipe.retrain.keeps_model)

    def unreleased_recipe(self) -> Recipe | None:
        """Return the recipe of the champion's own retraining, where a kill left no artifact `release` of it.

        The registry names its result by then, so that the files of its week are new to nobody, and no retraining would
        finish it. Its last step is made again, and moves no alias twice.
        """
        scores = self.lineage.made.get("scores") if self.lineage else None
        if self.lineage is None or scores is None or self.lineage.is_released:
            return None
        retrain = table_of(scores[1].recipe.get("retrain"))
        began_with = table_of(retrain.get("champion")).get("digest")
        return checked(scores[1].recipe) if began_with not in (None, self.champion.manifest.digest) else None


def resolve(recipe: Recipe, *, argument: str = "RECIPE", from_base: bool = False) -> Resolution:
    """Find the champion and the files that came since, and derive the recipe of the retraining.

    Args:
        recipe: The user's.
        argument: The recipe and options as the user gave them, for remedies.
        from_base: Keep nothing of the champion, and only compare with it.
    """
    champion = find_released(recipe, argument)
    lines = [f"champion: {champion.name} version {champion.version}, {champion.uri}"]
    if from_base:
        lines.append("from the base: all files are read, and the result is compared with the champion")
        derived = recipe_from_base(recipe, champion)
        return Resolution(recipe=derived, state="new", champion=champion, lines=tuple(lines))
    # The champion's own root and that of its recipe are looked in first.
    lineage = lineage_of(champion, [recipe.storage.root] if recipe.storage.root else [])
    week = with_week_end(recipe)
    changes = changes_of(week, lineage)
    inputs, chats = compare_inputs(recipe, lineage.files), compare_chats(recipe, lineage.chats)
    has_text = any(each.new for each in inputs.values())
    lines += lines_of_changes(week, lineage, changes, has_text=has_text)
    for source, each in inputs.items():
        lines += lines_of(source, each)
    lines += lines_of_chats(chats)
    state: State = "new" if has_text or chats.unlearnt else "nothing"
    derived = recipe
    if state == "new":
        derived = derived_recipe(week if has_text else recipe, lineage, inputs, chats)
        lines += _lines_of_run(derived, lineage, inputs, chats)
    else:
        and_chats = " and no new chats" if chats.sizes else ""
        lines.append(f"no new text{and_chats}: no file of the inputs is new to the champion; nothing to do")
    return Resolution(
        recipe=derived, state=state, champion=champion, lines=tuple(lines), lineage=lineage, inputs=inputs, chats=chats
    )  # fmt: skip


def _lines_of_run(
    derived: Recipe, lineage: Lineage, inputs: Mapping[str, Inputs], chats: Inputs
) -> Iterator[str]:
    """Say what the retraining reads, keeps and begins with."""
    assert derived.retrain is not None
    files = [(each.sizes, each.new) for each in inputs.values()] + [(chats.sizes, chats.unlearnt)]
    size = human_bytes(sum(sizes[uri] for sizes, uris in files for uri in uris))
    if wants_new_chats(derived) and chats.sizes:
        yield f"retrain.chats: new: {_chats_words(derived, lineage)}"
    yield (
        f"new: {counted(sum(len(uris) for _, uris in files), 'file')}, {size}; taken as they are: "
        f"{', '.join(sorted(derived.retrain.keeps))}"
    )
    if derived.retrain.keeps_model:
        yield f"no new text, so the retraining begins with finetuning, on the model {lineage.places['model']}"
        return
    start = derived.pretrain.start_from
    begin = (
        "weights of the champion" if start == lineage.places["model"] else "plateau checkpoint, with moments"
    )
    yield f"training begins with the {begin}: {start}"
    if number := derived.pretrain.average_last:
        yield f"training ends with the mean of its last {number} checkpoints, or of as many as it has"


def _chats_words(derived: Recipe, lineage: Lineage) -> str:
    """Fate of the chats where the recipe asks for new ones alone."""
    if derived.finetune.start_from:
        return f"finetuning goes on with the champion's adapter {derived.finetune.start_from}, and repeats no earlier chat"
    if "adapter" in lineage.made:
        return "with new text the model below the champion's adapter is another one, so all chats are learnt"
    return "the champion is no adapter that finetuning could go on with, so all chats are learnt"
