"""`anadil tokenizer inspect`: show how tokenizers cut a text, side by side."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anadil.cli.options import add_output_option
from anadil.cli.output import print_result
from anadil.core.table import Table

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def add_inspect(command: argparse.ArgumentParser) -> None:
    """Add the command with its options."""
    from anadil.runtime.entry_point import add_recipe_options

    text = "text to cut, or `-` for stdin. A directory with a tokenizer counts as --tokenizer; without a text, the prompts of the language are cut"
    command.add_argument("texts", metavar="TEXT", nargs="+", help=text)
    text = "directory with a tokenizer.json, or a tokenizer artifact, of which all candidates are shown (default: the recipe's base)"
    command.add_argument("--tokenizer", nargs="+", action="extend", default=[], metavar="DIR", help=text)
    add_recipe_options(command)
    add_output_option(command)
    command.set_defaults(command=inspect)


def inspect(options: argparse.Namespace) -> int:
    """Print how each tokenizer cuts the text."""
    from anadil.core.errors import DataError
    from anadil.recipe.load import load_recipe
    from anadil.text.language import load_language

    folders = [word for word in options.texts if word.startswith("s3://") or Path(word).expanduser().is_dir()]
    words = [word for word in options.texts if word not in folders]
    if not words:
        words = list(load_language(load_recipe(options.recipe, options.set).language).prompts)
    text = sys.stdin.read() if words == ["-"] else " ".join(words)
    if not text.strip():
        raise DataError("the text is empty; give one to cut")
    options.tokenizer += folders
    rows = [_inspected(name, tokenizer, text) for name, tokenizer in _tokenizers(options)]
    cells = [
        (
            row["name"], f"{row['rows']:,}", f"{row['tokens']:,}", f"{row['tokens_per_word']:.3f}",
            f"{row['bytes_per_token']:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    lines = [*Table("Tokenizers", ("", "rows", "tokens", "per word", "bytes"), cells).lines()]
    for row in rows:
        lines += ["", row["name"], f"  {'|'.join(row['pieces'])}"]
    print_result({"text": text, "tokenizers": rows}, lines, options.output)
    return 0


def _tokenizers(options: argparse.Namespace) -> Iterator[tuple[str, "Tokenizer"]]:
    from anadil.artifacts.base_model import base_tokenizer, read_tokenizer
    from anadil.artifacts.prefetch import fetch
    from anadil.recipe.load import load_recipe
    from anadil.runtime.execute import base_cache

    if not options.tokenizer:
        recipe = load_recipe(options.recipe, options.set)
        yield recipe.base.model, read_tokenizer(base_tokenizer(recipe.base, base_cache(recipe)))
    for place in options.tokenizer:
        folder = fetch(place, "tokenizer")[0] if place.startswith("s3://") else Path(place).expanduser()
        candidates = sorted(path.parent for path in folder.glob("candidates/*/tokenizer.json"))
        for each in candidates or [folder]:
            yield each.name if candidates else place.rstrip("/"), read_tokenizer(each)


def _inspected(name: str, tokenizer: "Tokenizer", text: str) -> dict[str, Any]:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    ids = encoding.ids
    return {
        "name": name, "rows": max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        "tokens": len(ids), "tokens_per_word": round(len(ids) / len(text.split()), 4),
        "bytes_per_token": round(len(text.encode()) / len(ids), 4),
        "pieces": [tokenizer.decode([index], skip_special_tokens=False) for index in ids], "ids": ids,
    }  # fmt: skip
