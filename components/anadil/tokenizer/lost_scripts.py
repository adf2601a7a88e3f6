"""Cost of texts in a script after tokens of it were given up, which no figure of another script shows.

No text of those scripts is at hand, or the tokens would have been needed. The tokens themselves say it: what was one
of them is now several.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from tokenizers import Tokenizer

from anadil.text.byte_symbols import to_text
from anadil.text.scripts import name_of
from anadil.tokenizer.alphabet import SCRIPTS

DIGITS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LostScript:
    """Tokens of one script that the base has and a candidate lacks."""

    tokens: int
    cost: float
    """Mean number of the candidate's tokens for the text of one of them."""


def lost_scripts(base: Tokenizer, candidate: Tokenizer) -> dict[str, LostScript]:
    """By script, such as `Cyrillic`, the most tokens first; pieces of letters are of no script and not counted."""
    own = candidate.get_vocab(with_added_tokens=True)
    costs: dict[str, list[int]] = defaultdict(list)
    for token in base.get_vocab(with_added_tokens=False):
        if token not in own and (script := _script(to_text(token))):
            costs[script].append(len(candidate.model.tokenize(token)))
    lost = {
        script: LostScript(tokens=len(each), cost=round(fmean(each), DIGITS))
        for script, each in costs.items()
    }
    return dict(sorted(lost.items(), key=lambda pair: (-pair[1].tokens, pair[0])))


def lost_text(lost: Mapping[str, LostScript]) -> str:
    """Words for people; empty where nothing is lost."""
    return ", ".join(
        f"{script} {each.tokens:,} (a text that was one of them takes {each.cost:g})"
        for script, each in lost.items()
    )


def _script(text: str) -> str:
    """The script of a token's first letter; empty for one without, and for a piece of a letter."""
    letter = next((name for name in map(name_of, text) if name in SCRIPTS), "")
    return "" if "\ufffd" in text else letter.capitalize()
