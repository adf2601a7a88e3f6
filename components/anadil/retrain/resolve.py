"""A recipe's retraining: the champion, what came since, and the recipe that teaches it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from anadil.core.format import counted, human_bytes
from anadil.recipe.pretrain import Pretrain
from anadil.recipe.sections import Recipe
from anadil.retrain.champion import ReleasedModel, find_released
from anadil.retrain.changes import changes_of, lines_of_changes
from anadil.retrain.derive import derived_recipe, recipe_from_base, wants_new_chats
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
ADVISED = 8
"""Checkpoints of a week whose mean was measured: benchmarks/retrain, "How a week ends"."""


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
    changes = changes_of(recipe, lineage)
    inputs, chats = compare_inputs(recipe, lineage.files), compare_chats(recipe, lineage.chats)
    has_text = any(each.new for each in inputs.values())
    lines += lines_of_changes(recipe, lineage, changes, has_text=has_text)
    for source, each in inputs.items():
        lines += lines_of(source, each)
    lines += lines_of_chats(chats)
    state: State = "new" if has_text or chats.unlearnt else "nothing"
    derived = recipe
    if state == "new":
        derived = derived_recipe(recipe, lineage, inputs, chats)
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
    settings = derived.pretrain
    if start == lineage.plateau and settings.decay_fraction and not derived.average_last:
        yield (
            f"its rate falls in {100 * settings.decay_fraction:g} % of the week's own steps, which is short; the mean of "
            f"the week's checkpoints may serve better: {_mean_settings(settings)}"
        )


def _mean_settings(settings: Pretrain) -> str:
    """Options by which a week ends with a mean. The recipe is checked before its week is known, so it has to write enough."""
    advised, least = f"--set pretrain.average_last={ADVISED}", settings.phases[-1].steps // ADVISED
    if least < settings.checkpoint_every:
        advised += f" --set pretrain.checkpoint_every={max(1, least)}"
    return advised


def _chats_words(derived: Recipe, lineage: Lineage) -> str:
    """Fate of the chats where the recipe asks for new ones alone."""
    if derived.finetune.start_from:
        return f"finetuning goes on with the champion's adapter {derived.finetune.start_from}, and repeats no earlier chat"
    if "adapter" in lineage.made:
        return "with new text the model below the champion's adapter is another one, so all chats are learnt"
    return "the champion is no adapter that finetuning could go on with, so all chats are learnt"
