"""A recipe's retraining: the champion, what came since, and the recipe that teaches it."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from anadil.artifacts.artifact import Manifest
from anadil.artifacts.chat_files import data_set_of
from anadil.core.errors import DataError, RecipeError
from anadil.core.format import counted, human_bytes
from anadil.core.reasons import reason_of
from anadil.core.stages import BEFORE_TRAINING, FLOW, STAGES, forms_of
from anadil.finetune.start_adapter import refuse_other_form
from anadil.page.values import table_of
from anadil.recipe.retrain import Champion, Retrain
from anadil.recipe.sections import Recipe
from anadil.retrain.lineage import Lineage, ReleasedModel, find_released, lineage_of
from anadil.retrain.new_files import (
    NO_FILES,
    Inputs,
    compare_chats,
    compare_inputs,
    lines_of,
    lines_of_chats,
    short_inputs,
)
from anadil.runtime.cache_key import BASE_FILES, INPUT, RECIPE, base_files, origin_changes, recipe_origin
from anadil.runtime.job import is_left_out, kind_of, word_of
from anadil.text.language import is_pack_path, load_language
from anadil.text.language_data import UnknownLanguageError

State = Literal["new", "nothing"]
KEPT = (
    *forms_of("tokenizer"),
    *(stage.writes for stage in FLOW if stage.per_source and stage.per_source.key),
)
"""Artifacts that every retraining takes as they are: the tokenizer, and what was written for a source."""
OF_TEXT = (*(STAGES[name].writes for name in BEFORE_TRAINING), "model")
"""Artifacts that one without new text takes as they are. What is merged of the model is found by its key."""
MEAN_OF = 8
"""Checkpoints whose mean a week ends with by default: measured in `benchmarks/retrain`."""
BINDING = ("language", "base.", "tokenizer.", "pretrain.sequence_length", "clean.minhash_")
"""Begins of keys that the champion's tokenizer, tokens and corpora follow from: with others none of them can be kept."""
CONSEQUENCES = {
    "clean.": "new text is cleaned by it, and earlier text stays as it is",
    "pretrain.": "training on the new text follows it",
    "sources.": "training on the new text follows it",
    "seed": "training follows it",
    "finetune.": "finetuning follows it",
    "evaluate.": "the scores follow it",
}
"""Begin of a key -> what follows of its change."""
TEXT_KEYS = ("clean.", "pretrain.", "sources.")
"""Begins of keys that only new text follows."""
IGNORED = ("clean.inputs", "pretrain.phases", "sources ")
"""Files are told by themselves; phases differ with the steps of a week; names of sources are told by themselves."""
OF_WEEK = ("finetune.inputs", "finetune.mix")
FROM_BASE = "train anew with --from-base, or set it back"


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

    `argument` is the recipe with its options as the user gave them, for remedies. A run `from_base` keeps nothing of the
    champion, and only compares with it.
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


def derived_recipe(recipe: Recipe, lineage: Lineage, inputs: Mapping[str, Inputs], chats: Inputs) -> Recipe:
    """Return the recipe whose run teaches the champion the new files; without new text it begins with finetuning."""
    places = lineage.places
    has_text = any(each.new for each in inputs.values())
    kinds = KEPT if has_text else OF_TEXT
    keeps = [word for word in places if kind_of(word) in kinds and not _is_unmade(word, recipe)]
    clean = {}
    for source in recipe.sources or ("",) if has_text else ():
        corpus = word_of("corpus", source)
        if corpus not in places:
            continue
        if source in inputs and inputs[source].new:
            key = f"sources.{source}.inputs" if source else "clean.inputs"
            files = short_inputs(
                inputs[source].new, inputs[source].sizes.keys() - set(inputs[source].new), key
            )
            clean[source] = (files, places[corpus])
        else:
            keeps.append(corpus)
    # Checked anew as a whole: a copy with other values would skip what the sections check of each other.
    data = json.loads(recipe.model_dump_json())
    for source, (files, since) in clean.items():
        if source:
            data["sources"][source]["inputs"] = files
            data["sources"][source]["clean"]["since"] = since
        else:
            data["clean"] |= {"inputs": files, "since": since}
    data["pretrain"]["start_from"] = start_of(recipe, lineage) if has_text else None
    _set_champion(data, recipe, lineage.champion, places, keeps)
    learnt_again = chats.sizes.keys() - set(chats.unlearnt)
    new_chats = short_inputs(chats.unlearnt, learnt_again, "finetune.inputs")
    data["retrain"]["new_chats"] = new_chats
    # An adapter fits the model that it was trained on, and new text makes another one.
    if wants_new_chats(recipe) and not has_text and "adapter" in lineage.made:
        refuse_other_form(places["adapter"], lineage.made["adapter"][1], recipe)
        names = {data_set_of(uri) for uri in chats.unlearnt}
        # Weights of data sets of which no file is new would be refused as mistakes.
        mix = {name: weight for name, weight in recipe.finetune.mix.items() if name in names}
        data["finetune"] |= {"inputs": new_chats, "mix": mix, "start_from": places["adapter"]}
    return checked(data)


def with_week_end(recipe: Recipe) -> Recipe:
    """Return the recipe with the mean at the end of a week, where it says nothing of how training ends.

    A week's decay is a part of its own few steps. The mean of its checkpoints was better at equal tokens:
    `benchmarks/retrain`, "How a week ends".
    """
    settings = recipe.pretrain
    says = settings.model_fields_set & {"average_last", "decay_fraction"}
    if says or (settings.schedule == "cosine" and "schedule" in settings.model_fields_set):
        return recipe
    if any(phase.anneal for phase in settings.phases):
        return recipe
    mean = settings.model_copy(update={"schedule": "wsd", "average_last": MEAN_OF})
    return recipe.model_copy(update={"pretrain": mean})


def wants_new_chats(recipe: Recipe) -> bool:
    """Return True if the recipe asks for new chats alone."""
    return bool(recipe.retrain and recipe.retrain.chats == "new")


def recipe_from_base(recipe: Recipe, champion: ReleasedModel) -> Recipe:
    """Return the recipe of a run on all files from the base, whose result meets the champion."""
    data = json.loads(recipe.model_dump_json())
    # A checkpoint of an earlier run is no base.
    data["pretrain"]["start_from"] = None
    _set_champion(data, recipe, champion, {}, [])
    return checked(data)


def start_of(recipe: Recipe, lineage: Lineage) -> str:
    """Return the place of the weights that training begins with."""
    start = (recipe.retrain or Retrain()).start
    if start == "plateau" and not lineage.plateau:
        raise DataError(
            f"retrain.start: plateau: {lineage.places['model']} kept no checkpoint before its decay that can be seen from "
            "here; set it to weights or auto, or train with pretrain.schedule wsd and pretrain.copies.archive"
        )
    if lineage.plateau and (start == "plateau" or (start == "auto" and recipe.pretrain.schedule == "wsd")):
        return lineage.plateau
    return lineage.places["model"]


def checked(data: Mapping[str, Any]) -> Recipe:
    """Return a recipe of changed keys."""
    try:
        return Recipe.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise RecipeError(
            f"{key or 'recipe'}: {reason_of(first)}, in the recipe of the retraining; correct the recipe, or --from-base"
        ) from None


def _set_champion(
    data: dict[str, Any], recipe: Recipe, champion: ReleasedModel, places: Mapping[str, str], keeps: list[str]
) -> None:
    # The release step compares version and digest with the registry, which may have moved on by then.
    known = Champion(
        name=champion.name, version=champion.version, uri=champion.uri, digest=champion.manifest.digest, artifacts=dict(places)
    )  # fmt: skip
    retrain = (recipe.retrain or Retrain()).model_copy(update={"champion": known, "keeps": tuple(keeps)})
    data["retrain"] = json.loads(retrain.model_dump_json())
    # The gate compares with the artifact that the run began with, whatever becomes of the alias meanwhile.
    data["evaluate"]["champion"] = champion.uri


def _is_unmade(word: str, recipe: Recipe) -> bool:
    """Return True for an artifact of a stage or source that the recipe leaves out."""
    stage = next(stage for stage in STAGES.values() if stage.writes == kind_of(word))
    source = word.partition(".")[2]
    return is_left_out(stage, recipe) or (bool(source) and source not in recipe.sources)


def changes_of(recipe: Recipe, lineage: Lineage) -> list[str]:
    """Return the changes of the recipe since the champion, `key before -> now` each."""
    changes = list(dict.fromkeys(_changes(recipe, lineage)))
    if binding := [each for each in changes if each.startswith(BINDING)]:
        raise RecipeError(
            f"the recipe is not the champion's ({lineage.champion.name} version {lineage.champion.version}): "
            f"{'; '.join(binding)}. Nothing of the champion can be kept then; {FROM_BASE}"
        )
    before, now = _sources(recipe, lineage)
    if ("" in before) != ("" in now):
        words = ("without sources", "with sources")
        raise RecipeError(
            f"sources: the champion was trained {words['' not in before]}, and the recipe is one {words['' not in now]}, so its "
            f"corpora are none of the recipe's; {FROM_BASE}"
        )
    return changes


def lines_of_changes(
    recipe: Recipe, lineage: Lineage, changes: Iterable[str], *, has_text: bool
) -> Iterator[str]:
    """Say what follows of each change that `changes_of` returns, and of sources that came or went."""
    for each in changes:
        if each.startswith(IGNORED):
            continue
        words = (text for begin, text in CONSEQUENCES.items() if each.startswith(begin))
        of_text = not has_text and each.startswith(TEXT_KEYS)
        yield f"{each}: {'the next new text follows it' if of_text else next(words, 'the run follows it')}"
    before, now = _sources(recipe, lineage)
    for name in sorted(now - before):
        yield f"sources.{name}: is new; all of its text is"
    for name in sorted(before - now):
        yield f"sources.{name}: is left out; its text is not repeated, and the champion goes on knowing it"


def _sources(recipe: Recipe, lineage: Lineage) -> tuple[set[str], set[str]]:
    """Return the sources of the champion and of the recipe; an empty name without sources."""
    return set(lineage.earlier), set(recipe.sources) or {""}


def _changes(recipe: Recipe, lineage: Lineage) -> Iterator[str]:
    tokenizer = lineage.made["tokenizer"][1]
    yield from _of_stage("tokenizer", recipe, tokenizer)
    theirs, ours = tokenizer.origin.get(BASE_FILES), base_files(recipe.base.model).get(BASE_FILES)
    if theirs and ours and theirs != ours:
        yield f"base.model {recipe.base.model} has other files than the champion's base"
    yield from _of_stage("pretrain", recipe, lineage.model)
    for source, (_, corpus) in lineage.corpora.items():
        if not source:
            yield from _of_stage("clean", recipe, corpus)
        elif source in recipe.sources:
            for change in _of_stage("clean", recipe.of_source(source), corpus):
                yield change if change.startswith(BINDING) else f"{change} (source {source})"
    if "adapter" in lineage.made:
        adapter = lineage.made["adapter"][1]
        # One that went on with another has learnt the files and weights of its own week alone.
        others = OF_WEEK if f"{INPUT}{STAGES['finetune'].extends.key}" in adapter.origin else ()
        yield from (each for each in _of_stage("finetune", recipe, adapter) if not each.startswith(others))


def _of_stage(name: str, recipe: Recipe, manifest: Manifest) -> Iterator[str]:
    sections = STAGES[name].keys
    # Inputs and files differ each week; keys alone are compared.
    others = {key: text for key, text in manifest.origin.items() if not key.startswith(RECIPE)}
    for change in origin_changes(manifest.origin, others | recipe_origin(recipe, sections), sections):
        phrase = change.removeprefix(RECIPE)
        if not (phrase.startswith("language ") and _is_same_language(recipe, manifest)):
            yield phrase


def _is_same_language(recipe: Recipe, manifest: Manifest) -> bool:
    """Return True for two ids of one language, such as `az` and `azj_Latn`."""
    theirs = manifest.recipe.get("language")
    if not isinstance(theirs, str) or is_pack_path(theirs) or is_pack_path(recipe.language):
        return False
    with contextlib.suppress(UnknownLanguageError):
        return load_language(theirs).code == load_language(recipe.language).code
    return False
