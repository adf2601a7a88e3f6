"""A command line that names the nearest word where one is unknown."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from anadil.core.format import visible_lines

CHOICE = re.compile(r"argument .*: invalid choice: '([^']*)' \(choose from (.*)\)$")
"""Messages of argparse for a command, or a value of an option, that it does not know."""


class Parser(argparse.ArgumentParser):
    """Argparse's own, with suggestions; from 3.14 on Python has them for choices, and for options it has none."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is unknown here, and not in the command above, which knows other options."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            near = _did_you_mean(name, list(self._option_string_actions))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and exit."""
        choice = CHOICE.match(message)
        near = _did_you_mean(choice[1], re.findall(r"[\w.-]+", choice[2])) if choice else ""
        super().error(visible_lines(message + near))


def _did_you_mean(word: str, words: Sequence[str]) -> str:
    from anadil.recipe.fields import did_you_mean  # loads pydantic, which no other command line needs

    return did_you_mean(word, words)
