"""Check that the base model can be taught chats, before hours of pre-training.

Every strategy of the tokenizer stage keeps the base's special tokens and its chat template, so the base decides.
"""

from pathlib import Path

from anadil.artifacts.base_model import BEGIN, CHAT_TOKENS, END, read_tokenizer
from anadil.recipe.sections import Recipe

MAX_SHOWN = 200  # Characters of a system turn.
LLAMA_3 = (BEGIN, END, *CHAT_TOKENS)


def check_chat_base(recipe: Recipe, folder: Path) -> str:
    """A note on the chat format; empty where the recipe names no chats.

    Args:
        recipe: What is to run.
        folder: The base's tokenizer.

    Raises:
        DataError: Its tokenizer has no control tokens that a proven template writes.
        ModuleNotFoundError: The packages of finetune are not installed, and a template would have to be rendered.
    """
    if not recipe.finetune.inputs:
        return ""
    tokenizer = read_tokenizer(folder)
    if all(tokenizer.token_to_id(token) is not None for token in LLAMA_3):
        return "chats as of Llama 3"
    from anadil.finetune.system_turn import recipe_format, system_turn
    from anadil.model.load import load_tokenizer

    found, default = recipe_format(load_tokenizer(folder), recipe.finetune, f"base.model {recipe.base.model}")
    own = system_turn(default, recipe.finetune)
    left_out = (
        f", without the base's system turn {default[:MAX_SHOWN]!r} (finetune.system is none)"
        if default
        else ""
    )
    system = f", with the system turn {own[:MAX_SHOWN]!r} where they have none" if own else left_out
    return f"chats by {found.origin}, answers end in {found.end}{system}"
