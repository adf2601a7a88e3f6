"""Keys of a recipe that a training may change while it is unfinished: the shares of its sources."""

import json
import re
from collections.abc import Mapping

from anadil.runtime.cache_key import RECIPE

PHASES = f"{RECIPE}pretrain.phases"
MIXES = ("mix", "anneal")
MAX_EPOCHS = re.compile(rf"{re.escape(RECIPE)}sources\.[^.]+\.max_epochs")


def split_shares(origin: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Part an origin into what a resume must not change, and entries that it may.

    An entry that holds both, the phases, stands in both: without its mixes, and as it is.
    """
    rest, shares = {}, {}
    for name, text in origin.items():
        if MAX_EPOCHS.fullmatch(name):
            shares[name] = text
            continue
        rest[name] = _without_mixes(text) if name == PHASES else text
        if rest[name] != text:
            shares[name] = text
    return rest, shares


def _without_mixes(phases: str) -> str:
    plain = [{key: value for key, value in phase.items() if key not in MIXES} for phase in json.loads(phases)]
    return json.dumps(plain, ensure_ascii=False)
