"""Marks of answers: keys that say that one is bad or not to be learnt, and the meaning of their values.

A mark that nobody here knows must not pass as praise: a row whose mark says neither good nor bad is dropped.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Literal

_JUDGED = (
    "correct", "good", "desirable", "accepted", "approved", "chosen", "preferred", "liked", "helpful", "valid", "passed",
)  # fmt: skip
_BLAMED = (
    "rejected", "bad", "wrong", "incorrect", "undesirable", "disliked", "invalid", "flagged", "excluded", "deleted",
)  # fmt: skip
VERDICTS = (
    "label", "kto_tag", "rating", "feedback", "quality", "verdict", "score", "grade", "vote", "reaction", "judgment",
    "judgement", "thumbs", "thumbs_up", "thumb_up", "upvoted", "keep", *_JUDGED, *(f"is_{name}" for name in _JUDGED),
)  # fmt: skip
"""Keys that say whether an answer is good: TRL's and ms-swift's KTO (`label`), LLaMA-Factory's (`kto_tag`),
OpenMathInstruct's (`is_correct`), and what feedback of users is exported as."""
FAULTS = (
    "thumbs_down", "thumb_down", "downvoted", "exclude", "discard", "skip", "ignore", *_BLAMED,
    *(f"is_{name}" for name in _BLAMED),
)  # fmt: skip
"""Keys that say that one is bad."""
SIDES = ("chosen", "rejected")
"""Keys of the two, which hold whole answers in other files."""
NUMBERED = (
    "correct", "rating", "feedback", "quality", "verdict", "score", "grade", "vote", "judgment", "judgement",
)  # fmt: skip
"""Keys whose numbers are places of a choice, or marks of a scale that nobody names; below zero is bad on each."""
SWITCHES = (
    "train", "training", "trainable", "train_on", "train_on_turn", "loss", "loss_scale", "loss_weight", "loss_mask",
    "compute_loss", "calculate_loss", "use_loss", "weight", "learn", "learnable",
)  # fmt: skip
"""Keys that say whether an answer is learnt: axolotl's `train` and `training`, ms-swift's `loss` and `loss_scale`, OpenAI's
`weight`."""
MASKS = ("masked", "mask", "is_masked")
"""Those that say the opposite, such as torchtune's."""
DETAILS = ("train_detail", "training_detail")
"""axolotl's: a list of parts of an answer, each with `train`."""
MARK_KEYS = (*VERDICTS, *FAULTS, *SWITCHES, *MASKS)
_OF_LEARNING = (*SWITCHES, *MASKS)
_OF_ANSWERS = (*VERDICTS, *FAULTS)
_REVERSED = frozenset({*FAULTS, *MASKS})

_GOOD = (
    "true t yes y good correct right chosen accepted accept approved approve desirable positive pos up upvote like liked "
    "pass passed ok okay valid high great excellent helpful preferred keep satisfied "
    "\N{THUMBS UP SIGN} \N{WHITE HEAVY CHECK MARK} \N{CHECK MARK} \N{HEAVY CHECK MARK} \N{BALLOT BOX WITH CHECK}"
)
_BAD = (
    "false f no n bad incorrect wrong rejected reject disapproved disapprove undesirable negative neg down downvote dislike "
    "disliked fail failed invalid low poor terrible awful unhelpful harmful discard unsatisfied "
    "\N{THUMBS DOWN SIGN} \N{CROSS MARK} \N{BALLOT X} \N{HEAVY BALLOT X} \N{HEAVY MULTIPLICATION X}"
)
WORDS: Mapping[str, bool] = {
    **dict.fromkeys((*_GOOD.split(), "thumbs up", "thumb up", "very good"), True),
    **dict.fromkeys((*_BAD.split(), "thumbs down", "thumb down", "not ok", "very bad", "very poor"), False),
}
"""Values of a mark, in small letters."""
MAX_VALUES = 8  # Values of a mark in one file, at most. More of them are classes, or texts.
MIN_FREE = 0.1
"""Share of rows with a free answer, from which on values are marks: the answers of a class come again and again."""

Use = Literal["mark", "class", "scale"]


def mark_of(value: object) -> bool | None:
    """True for praise, False for blame, None for a value that is no mark."""
    number = number_of(value)
    if number is None:
        return WORDS.get(_plain(value)) if isinstance(value, str) else None
    if number < 0 and number.is_integer():
        return False
    return bool(number) if number in (0, 1) else None


def number_of(value: object) -> float | None:
    """A finite number, also as a text; None where it is none."""
    try:
        number = float(value) if isinstance(value, bool | int | float | str) else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) < float("inf") else None


def verdict(row: Mapping[str, object], name: str) -> bool | None:
    """Verdict of a mark of a row; None if its value is not known."""
    value = row.get(name)
    if name == "label" and not isinstance(value, bool):  # see `uses_of`
        return None
    number = None if isinstance(value, bool) else number_of(value)
    # A place or a grade: 1 is the best on one scale and the worst on another.
    if name in NUMBERED and number is not None and number >= 0:
        return None
    # In files of pairs these keys hold whole answers, so only plain truth values are marks.
    if name in SIDES and isinstance(value, str) and number is None and _plain(value) not in ("true", "false"):
        return None
    mark = mark_of(value)
    return mark if mark is None or name not in _REVERSED else not mark


def marks_in(row: Mapping[str, object], names: Iterable[str] = MARK_KEYS) -> dict[str, bool | None]:
    """Verdict of each mark that a row has, in the order of the names."""
    # Most rows have none of some eighty: to ask for the verdict of each takes half of the time that a chat is read in.
    return {name: verdict(row, name) for name in names if name in row}


def marked_by(row: Mapping[str, object]) -> str:
    """The key that marks a row's answers as bad or as not to be learnt; empty if none does."""
    return next((name for name, mark in marks_in(row).items() if mark is False), "")


def is_learnt(turn: Mapping[str, object]) -> bool | str:
    """Return True if an answer may be learnt, False if a mark forbids it, or the first mark that says neither."""
    learnt = True
    for name, mark in marks_in(turn, _OF_LEARNING).items():
        if mark is None and turn[name] is not None:
            return f"{name} {turn[name]}"
        learnt = learnt and mark is not False
    for name in DETAILS:
        parts = turn.get(name)
        if parts and not (
            isinstance(parts, list | tuple)
            and all(isinstance(part, Mapping) and mark_of(part.get("train", True)) is True for part in parts)
        ):
            return f"{name} of a part"
    return learnt and False not in marks_in(turn, _OF_ANSWERS).values()


def unsure(row: Mapping[str, object]) -> list[str]:
    """Marks of a row whose meaning only the whole file tells: unknown values, and what may be a class."""
    return [
        name
        for name in _OF_ANSWERS
        if name in row and name not in SIDES
        if isinstance(value := row.get(name), int | float | str) and not isinstance(value, bool)
        if value != "" and value == value  # noqa: PLR0124  NaN is no value
        if name == "label" or (mark_of(value) is None and number_of(value) is None)
    ]


def uses_of(rows: Iterable[tuple[Mapping[str, object], str]]) -> dict[str, Use]:
    """Use of each unsure key of a file."""
    answers: dict[str, dict[str, list[str]]] = {}
    for row, answer in rows:
        for name in unsure(row):
            answers.setdefault(name, {}).setdefault(_plain(str(row[name])), []).append(answer)
    uses: dict[str, Use] = {}
    for name, values in answers.items():
        # Marks are few and stand beside free answers. The answer tells the class.
        free = sum(len(each) for each in values.values() if 2 * len(set(each)) > len(each))
        if len(values) > MAX_VALUES or free < MIN_FREE * sum(map(len, values.values())):
            uses[name] = "class"
        else:
            is_scale = any(number_of(value) is not None and mark_of(value) is None for value in values)
            uses[name] = "scale" if is_scale else "mark"
    return uses


def _plain(value: str) -> str:
    """Lower case without underscores, variants of signs and colours of skin."""
    text = unicodedata.normalize("NFKC", value).casefold().replace("_", " ").strip().strip(".!")
    plain = "".join(char for char in text if unicodedata.category(char) not in ("Mn", "Sk"))
    return " ".join((plain[:1] + plain[1:].replace("-", " ")).split())
