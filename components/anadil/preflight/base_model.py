"""Check the base model before a run starts: its files, its tokenizer, and the chats that it is to be taught."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anadil.artifacts import base_model
from anadil.artifacts.base_kind import base_kind
from anadil.artifacts.base_vocabulary import read_base, require_changeable, require_end, require_rows
from anadil.artifacts.text_part import wrapper_of
from anadil.artifacts.weight_files import has_weights, outside_text, stored_tensors
from anadil.core.install import install
from anadil.model.family_table import check_family
from anadil.preflight.inputs import hardest_chats
from anadil.recipe.sections import Recipe
from anadil.runtime.check import CheckResult, claims_of, inspect_where_visible, passed, unseen
from anadil.runtime.execute import base_cache

KIND = "kind of base"
KEEP_CHATS = (
    "evaluate asks every model in the base's chat format, which training on running text may damage; a source with "
    "written_by: base replays its text and chats, and a lower lr in pretrain.phases or merge.base_share keep more of it"
)
MAX_SHOWN = 200  # Characters of a system turn.
LLAMA_3 = (base_model.BEGIN, base_model.END, *base_model.CHAT_TOKENS)
# Values of `rope_type` whose angles change for a whole batch once one of its pieces is longer than the model was made
# for. Source: transformers 5, `modeling_rope_utils.dynamic_rope_update`.
BY_LENGTH = ("dynamic", "longrope")
ORIGINAL = "original_max_position_embeddings"


def inspect_base(
    recipe: Recipe, *, here: bool = True, chats: bool = True, vocabulary: bool = True
) -> CheckResult:
    """Read the base's config, tokenizer and headers of weights; `vocabulary`: candidates will be made of its tokenizer."""
    key, model = "base.model", recipe.base.model
    folder, local = Path(model).expanduser(), base_model.is_local(model)
    if model == base_model.TINY:
        return passed(key, "tiny, made on the spot")
    if hidden := claims_of([model], recipe, here=here):
        return unseen(key, hidden)
    base_model.check_base(recipe.base)
    if local:  # first, so that nobody fetches a torn model again that is refused then
        _check_family(recipe, folder, changes=vocabulary)

    def inspect() -> CheckResult:
        if local:
            stored_tensors(folder)  # first what needs no torch
        place = base_model.base_tokenizer(recipe.base, base_cache(recipe))
        if not local and (place / "config.json").is_file():
            _check_family(recipe, place, changes=vocabulary)
        size = _check_vocabulary(recipe, place, changes=vocabulary)
        packed = ""
        if local:
            from anadil.model.architecture import check_fit  # loads torch, which not every image has
            from anadil.model.mxfp4 import check_room

            check_fit(folder)
            packed = check_room(folder, base_cache(recipe)) if here else ""
        written = check_chat_base(recipe, place) if chats else ""
        source = folder if local else place
        has_config = (source / "config.json").is_file()
        hint = (
            rotation_hint(base_model.model_config(source), recipe.pretrain.sequence_length)
            if has_config
            else ""
        )
        vocabulary_detail = f"{model}, a tokenizer of {size:,} tokens"
        details = [vocabulary_detail, packed, _text_part(source), written, gguf_detail(place)]
        return passed(key, ", ".join(filter(None, details)), hint)

    return inspect_where_visible(key, inspect, [model], recipe, here=here)


def refuse_planned_base(recipe: Recipe) -> None:
    """Refuse a base of this machine by the files that are there. A plan needs no more than a config.json.

    Tensors are not held against the model, as `inspect_base` does: that loads torch and transformers, 12 CPU seconds here.
    """
    folder = Path(recipe.base.model).expanduser()
    if not base_model.is_local(recipe.base.model) or not (folder / "tokenizer.json").is_file():
        return
    if has_weights(folder):
        stored_tensors(folder)
    if (folder / "config.json").is_file():
        _check_family(recipe, folder, changes=True)
    _check_vocabulary(recipe, folder, changes=True)


def inspect_kind(recipe: Recipe) -> CheckResult:
    """Tell whether the base was taught to answer, by which evidence, and what follows from it."""
    model = recipe.base.model
    kind = base_kind(base_model.base_tokenizer(recipe.base, base_cache(recipe)), model)
    detail = f"{kind.kind}: {kind.clause}"
    if kind.kind == "unknown":
        remedy = "if it was taught to answer, ask the model yourself after training: evaluate does not"
        return passed(KIND, detail, remedy)
    return passed(KIND, detail, KEEP_CHATS if kind.is_post_trained else "")


def _check_family(recipe: Recipe, folder: Path, *, changes: bool) -> None:
    check_family(
        base_model.model_config(folder),
        recipe.pretrain.parallelism.model_dump(),
        strategies=recipe.tokenizer.strategies if changes else (),
    )


def _check_vocabulary(recipe: Recipe, folder: Path, *, changes: bool) -> int:
    """Return the number of tokens of the base's tokenizer; candidates are made of it if `changes`."""
    tokenizer = read_base(folder)
    require_end(folder, tokenizer)
    if changes:
        require_changeable(tokenizer, recipe.base.model, recipe.tokenizer)
    if (folder / "config.json").is_file():
        require_rows(folder, tokenizer)
    return tokenizer.get_vocab_size()


def _text_part(folder: Path) -> str:
    """Return a note on the text model that is trained of a model of text and images, or nothing for a text model."""
    if not (wrapper := wrapper_of(folder)):
        return ""
    kind = base_model.model_config(folder)["model_type"]
    left = f" ({len(outside_text(folder)):,} other tensors are not read)" if has_weights(folder) else ""
    return f"of {wrapper} the text model, a {kind}{left}"


def gguf_detail(folder: Path) -> str:
    """Return a note on export as GGUF, which else shows only after training; empty without a config.json."""
    if not (folder / "config.json").is_file():
        return ""
    try:  # loads transformers, which not every image has
        from anadil.release.export.gguf_refusal import gguf_refusal, gguf_words
    except ModuleNotFoundError as error:
        return f"GGUF not checked ({error.name} is not installed here; {install('gguf')})"
    if fault := gguf_refusal(folder):
        return f"no GGUF ({fault})"
    return f"GGUF as {gguf_words(folder)}"


def check_chat_base(recipe: Recipe, folder: Path) -> str:
    """Return a note on the chat format of the base's tokenizer; empty where the recipe names no chats."""
    # Every strategy of the tokenizer stage keeps the base's special tokens and its chat template, so the base decides.
    if not recipe.finetune.inputs:
        return ""
    tokenizer = base_model.read_tokenizer(folder)
    if all(tokenizer.token_to_id(token) is not None for token in LLAMA_3):
        return "chats as of Llama 3"
    from anadil.finetune.chat_format import recipe_format, system_turn
    from anadil.model.load import load_tokenizer
    from anadil.model.template_limits import CHAT_CPU_S, try_chats

    what = f"base.model {recipe.base.model}"
    chat_format, default = recipe_format(load_tokenizer(folder), recipe.finetune, what)
    system, turn = "", system_turn(default, recipe.finetune)
    if chats := hardest_chats(recipe, turn):
        try_chats(chat_format.template, what, chats, CHAT_CPU_S, "a chat of finetune")
    if turn:
        system = f", with the system turn {turn[:MAX_SHOWN]!r} where they have none"
    elif default:
        system = f", without the base's system turn {default[:MAX_SHOWN]!r} (finetune.system is none)"
    return f"chats by {chat_format.origin}, answers end in {chat_format.end}{system}"


def rotation_hint(config: Mapping[str, Any], sequence_length: int) -> str:
    """Return advice on a base whose rotation of positions depends on its batch at this length; else nothing."""
    # The config is in the spelling of transformers 4 or 5.
    rotations = config.get("rope_parameters") or config.get("rope_scaling") or {}
    # Types of layers may have a rotation each.
    for rotation in (each for each in (rotations, *rotations.values()) if isinstance(each, Mapping)):
        kind = rotation.get("rope_type") or rotation.get("type")
        length = rotation.get(ORIGINAL) or config.get(ORIGINAL) or config.get("max_position_embeddings")
        if kind in BY_LENGTH and isinstance(length, int) and sequence_length > length:
            return (
                f"rope_type {kind} turns all pieces of a batch otherwise where one is longer than {length:,} tokens, so that "
                f"documents are not trained as they would be alone; set pretrain.sequence_length to {length} at most"
            )
    return ""
