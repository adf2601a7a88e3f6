"""Columns of a row of chats, under whatever case and signs their names are written, and marks of its answers.

Names and marks are those of public formats. `finetune.columns` names all others.
"""

import itertools
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Literal

from anadil.core.json_text import field_of, parse_json

NUMBERED = re.compile(r"\s*(?:[(（]?(\d{1,2}|[A-Za-zＡ-Ｚａ-ｚア-コ])[).:）．：、]|([①-⑳]))\s*(\S.*?)\s*")
"""A line that names a choice: `1) ...`, `2. ...`, `(b) ...`, `（３）...`, `④...`, `オ．...`."""
KANA = list("アイウエオカキクケコ")
"""How Japanese numbers choices beside figures and letters."""
ORDERS = (list(map(str, range(1, 100))), list(string.ascii_lowercase), KANA)
CHOICE_ANSWERS = ("answer", "answerKey")
"""Columns that name the right choice; the second is ARC's and CommonsenseQA's."""
CHOICE_COLUMNS = [f"choice{place}" for place in range(10)]
"""A column for each choice, and `label` for the place of the right one, from 0 on: JCommonsenseQA's layout. Those that
begin with `choice1` are left alone: COPA's `question` is `cause` or `effect`, not what is asked."""
LISTS = ("messages", "conversations", "conversation")
QUESTIONS = ("prompt", "instruction", "question", "query", "input")
"""Columns that hold what is asked, the first before the others."""
INSTRUCTION = "instruction"
OF_CHATS = (
    "context", "contexts", "passage", "paragraph", "document", "documents", "article", "story", "background",
    "evidence", "facts",
)  # fmt: skip
PASSAGES = ("input", *OF_CHATS)
"""Columns of what a question is about, which stands below it; beside a list of turns, below its first question."""
ANSWERS = ("response", "completion", "output", "answer", "answers")
REASONINGS = ("reasoning_content", "reasoning", "thinking")
"""Keys of what an assistant thinks before its answer: DeepSeek's and Qwen's, OpenRouter's, gpt-oss's."""
HISTORY = "history"
"""Column of LLaMA-Factory's Alpaca layout: pairs of what was asked and answered before."""
SYSTEMS = ("system", "system_prompt", "system_message", "system_instruction")
CHOICES = ("choices", "options")
"""Columns that hold all choices: a list, or an object of them by letter."""
LETTERED = re.compile(r"(.*)([A-Za-z0-9])", re.DOTALL)
"""Column of one choice, whatever the words before its letter: `A`, `option_b`, `variant C`, `Option 4`."""
NUMBERED_CHOICES = ("option", "opt", "variant")
"""Words of such columns whose last sign is a figure; those of any other name are too often something else."""
LABEL = re.compile(rf"(?:(?:{'|'.join(NUMBERED_CHOICES)})[\s_-]*)?[().]*(\w|\d+)[().]*", re.IGNORECASE)
"""The letter or number of a choice, with signs round it, or a column's word before it."""
MAX_LABEL = 12
"""Characters of one."""
CHOICE_TEXTS, CHOICE_LABELS = ("text", "value", "content", "option"), ("label", "key", "id", "letter")
"""Keys of a choice that is an object."""
TURN_TEXTS = ("role", "from", "content", "value")
PASSAGE_TEXTS = ("text", "content")
"""Keys that hold the text where a passage is an object."""
ROLES = {
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "system": "system", "developer": "system",
}  # fmt: skip
ChatColumn = Literal["messages", "question", "answer", "system", "context"]
Names = Mapping[ChatColumn, str]
"""Role of a column -> its name in the user's files: `finetune.columns`."""
ALIASES: Mapping[ChatColumn, tuple[str, ...]] = {
    "messages": LISTS,
    "question": (*LISTS, *(name for name in QUESTIONS if name not in PASSAGES)),
    "answer": (*LISTS, *ANSWERS),
    "system": SYSTEMS,
    "context": PASSAGES,
}
"""Role of a column -> the columns that one of the user's names replaces."""
VERDICTS = ("label", "kto_tag")
"""Keys that say whether an answer is good: TRL's and ms-swift's KTO, LLaMA-Factory's."""
SWITCHES = ("train", "training", "loss", "loss_scale", "loss_mask", "weight")
"""Keys that say whether an answer is learnt: axolotl's first two, ms-swift's next, OpenAI's `weight`."""
MASKED = "masked"
"""torchtune's key, which says the opposite."""
MARK_KEYS = (*VERDICTS, *SWITCHES, MASKED)
DETAILS = ("train_detail", "training_detail")
"""axolotl's: a list of parts of an answer, each with `train`."""
SIDES = ("chosen", "rejected")
"""Columns of two answers, the better one first."""
KEYS = (
    *LISTS, *QUESTIONS, *PASSAGES, *ANSWERS, *REASONINGS, HISTORY, *SYSTEMS, *CHOICES, *TURN_TEXTS, *MARK_KEYS, *DETAILS,
    *CHOICE_ANSWERS, *CHOICE_COLUMNS,
)  # fmt: skip


def choices_of(row: Mapping[str, object], question: str, answer: str) -> tuple[str, ...]:
    """The choices of a question: the texts of the row's `choices`, or numbered lines at the question's end.

    Empty if its answer is free. `answer` is the one to the row's last question and must be among them.
    """
    choices = tuple(text.strip() for text in _listed(row)[0]) or _numbered(question)
    return choices if all(choices) and answer in choices and len(set(choices)) == len(choices) > 1 else ()


def chosen_text(row: Mapping[str, object], first: int = 0) -> str | None:
    """The text among `choices` that a row's `answer` names by itself, its letter or its place (counted from `first`), or None."""
    texts, labels = _listed(row)
    answer = _answer(row)
    if isinstance(answer, str):
        plain = answer.strip()
        if plain in texts:
            return plain
        # Japanese sets write letters and brackets in full width.
        label = _label(plain) or unicodedata.normalize("NFKC", plain).strip("().").upper()
        for order in (labels, KANA):
            if label in order[: len(texts)]:
                return texts[order.index(label)]
    place = _place(row)
    return texts[place - first] if place is not None and 0 <= place - first < len(texts) else None


def names_no_choice(row: Mapping[str, object]) -> bool:
    """Return True if a row has choices and does not say which one is right."""
    if chosen_text(row) is not None:
        return False
    if not _listed(row)[0]:
        # A letter without what it stands for teaches nothing.
        return any(_holds(row.get(name)) for name in CHOICES) and _label(_answer(row)) != ""
    free = (key for key in ("response", "completion", "output") if row.get(key) is not None)
    return _answer(row) is not None or next(free, None) is None


def first_place(rows: Iterable[Mapping[str, object]]) -> int:
    """0 or 1: the place of the first choice in rows that name the right one by its place."""
    is_last = False
    for row in rows:
        place = _place(row)
        if place == 0:
            return 0
        is_last |= place is not None and place == len(_listed(row)[0])
    return int(is_last)


def with_chosen(row: dict[str, object], first: int) -> dict[str, object]:
    """The row with the text of its right choice where it gives a place."""
    text = chosen_text(row, first) if names_place(row) else None
    return row if text is None else {**row, CHOICES[0]: _listed(row)[0], CHOICE_ANSWERS[0]: text}


def has_choices(row: Mapping[str, object]) -> bool:
    """Return True if a row has choices, whose `label` is the right one."""
    return any(_holds(row.get(name)) for name in CHOICES) or CHOICE_COLUMNS[0] in row


def names_place(row: Mapping[str, object]) -> bool:
    """Return True if a row names the right choice by its place."""
    return _place(row) is not None


def _answer(row: Mapping[str, object]) -> object:
    keys = (*CHOICE_ANSWERS, "label") if has_choices(row) else CHOICE_ANSWERS
    given = next((row[key] for key in keys if row.get(key) is not None), None)
    return next((row[key] for key in ANSWERS if _label(row.get(key))), None) if given is None else given


def _label(answer: object) -> str:
    """The letter or number that an answer is, as `B`, `(b)` and `2.`; empty for a text."""
    if isinstance(answer, bool) or not isinstance(answer, int | str) or len(text := str(answer)) > MAX_LABEL:
        return ""
    match = LABEL.fullmatch(unicodedata.normalize("NFKC", text).strip())
    return match[1].upper() if match and match[1].isalnum() else ""


def _place(row: Mapping[str, object]) -> int | None:
    """The number that a row's answer is, unless that is one of the choices' own texts."""
    texts, labels = _listed(row)
    answer = _answer(row)
    if isinstance(answer, str) and answer.strip().isdecimal():
        plain = answer.strip()
        return None if plain in texts or plain in labels else int(plain)
    return answer if texts and isinstance(answer, int) and not isinstance(answer, bool) else None


def _listed(row: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """The texts of a row's choices and their letters; none unless all are texts. ARC's are a table of both."""
    name = next((name for name in CHOICES if _holds(row.get(name))), None)
    listed: object = parsed(row[name]) if name else None
    if listed is None:
        listed = [row[key] for key in itertools.takewhile(row.__contains__, CHOICE_COLUMNS)]
        listed = listed or {label: row[key] for label, key in _lettered(row).items()}
    if isinstance(listed, str):
        listed = _numbered(listed)
    labels: object = list(string.ascii_uppercase)
    if isinstance(listed, list | tuple) and all(isinstance(each, Mapping) for each in listed):
        letters = [_first_text(each, CHOICE_LABELS) for each in listed]
        labels = letters if all(letters) and letters else labels
        listed = [_first_text(each, CHOICE_TEXTS) for each in listed]
    if isinstance(listed, Mapping):
        texts_apart = isinstance(listed.get("text"), list | tuple)
        labels, listed = (
            (listed.get("label"), listed["text"])
            if texts_apart
            else ([str(label).strip().upper() for label in listed], [*listed.values()])
        )
    texts = list(listed) if isinstance(listed, list | tuple) else []
    if not isinstance(labels, list) or not all(isinstance(text, str) for text in (*texts, *labels)):
        return [], []
    return texts, labels


def _first_text(given: Mapping[str, object], names: Iterable[str]) -> str | None:
    return next((str(given[name]).strip() for name in names if isinstance(given.get(name), str | int)), None)


def _lettered(row: Mapping[str, object]) -> dict[str, str]:
    """Letter or number -> column of a choice, where the answer is one of them: `A`, `B`, ... or `option_1`, ...; else none."""
    label = _label(next((row[key] for key in (*CHOICE_ANSWERS, *ANSWERS) if row.get(key) is not None), None))
    stems: dict[str, dict[str, str]] = {}
    for key, value in row.items() if label else ():
        match = LETTERED.fullmatch(_letters(key))
        if match and isinstance(value, str):
            stems.setdefault(match[1], {})[match[2].upper()] = key
    for stem, named in stems.items():
        if label in named and len(named) > 1 and (label.isalpha() or stem in NUMBERED_CHOICES):
            order = (
                ("0" * ("0" in named) + string.digits[1:]) if label.isdecimal() else string.ascii_uppercase
            )
            return {each: named[each] for each in itertools.takewhile(named.__contains__, order)}
    return {}


def _numbered(question: str) -> tuple[str, ...]:
    """Choices in the last lines of a question, which are numbered one after another from 1 or A."""
    lines: list[tuple[str, str]] = []
    for line in reversed(question.split("\n")):
        match = NUMBERED.fullmatch(line)
        if match is None:
            return ()
        lines.insert(0, (unicodedata.normalize("NFKC", match[1] or match[2]).lower(), match[3]))
        if any(lines[0][0] == order[0] for order in ORDERS):
            break
    # A list that begins at 3 or skips a number is text that only looks like choices.
    names = [name for name, _ in lines]
    return tuple(text for _, text in lines) if any(names == order[: len(names)] for order in ORDERS) else ()


# A file repeats a few keys in millions of rows.
@lru_cache(maxsize=4_096)
def known_name(key: str) -> str:
    """The name of a key that is read, however it is written, such as `Loss Weight` and `isCorrect`; else the key."""
    return _NAMES.get(_letters(key), key)


def _letters(key: str) -> str:
    return "".join(filter(str.isalnum, key)).casefold()


_NAMES = {_letters(key): key for key in KEYS}


def with_known_names(row: Mapping[str, object]) -> dict[str, object]:
    """A row or a turn with the keys that are read under their names."""
    return {name: row[key] for key, name in _names_in(row).items()}


def _names_in(row: Mapping[str, object]) -> dict[str, str]:
    """Keys with the names of formats. Of several keys for one name, the exact or else the first one counts."""
    first: dict[str, str] = {}
    for key in sorted(row, key=lambda key: known_name(key) != key):
        first.setdefault(known_name(key), key)
    return {key: name if first[name := known_name(key)] == key else key for key in row}


def with_names(row: Mapping[str, object], columns: Names) -> dict[str, object]:
    """A row with the columns that a recipe names, under the names that are read.

    An instruction stays beside a named question, as beside `question`, but not beside another answer: a row in two languages
    has both.
    """
    named = named_in(row, columns)
    if not named:
        return with_known_names(row)
    replaced = {*named.values(), *(alias for role in named for alias in ALIASES[role])}
    has_other_answer = any(known_name(key) in ANSWERS for key in row if key not in named.values())
    if "question" in named and "messages" not in named and not has_other_answer:
        replaced -= {INSTRUCTION} - {*named.values()}
    rest = {key: value for key, value in with_known_names(row).items() if key not in replaced}
    return {**rest, **{role: field_of(row, column) for role, column in named.items()}}


def named_in(row: Mapping[str, object], columns: Names) -> dict[ChatColumn, str]:
    """The columns of a row that a recipe names, or paths of keys to them."""
    return {role: column for role, column in columns.items() if _has(row, column)}


def _has(row: Mapping[str, object], path: str) -> bool:
    try:
        field_of(row, path)
    except KeyError:
        return False
    return True


def first_of(row: Mapping[str, object], names: Iterable[str]) -> str | None:
    """The first of some columns that holds something."""
    return next((name for name in names if _holds(row.get(name))), None)


def below(row: Mapping[str, object], asked: str) -> list[str]:
    """Columns whose texts belong below the text of a column."""
    if asked in LISTS:
        return [name for name in OF_CHATS if passage_text(row.get(name))]
    names = (*PASSAGES, "question", "query") if asked == INSTRUCTION else PASSAGES
    return [name for name in names if name != asked and _holds(row.get(name)) and _number(row[name]) is None]


def passage_text(given: object) -> str | None:
    """The text of a passage, or of several; None where it is none."""
    if isinstance(given, str):
        return given.strip()
    if isinstance(given, Mapping):
        return next((text.strip() for key in PASSAGE_TEXTS if isinstance(text := given.get(key), str)), None)
    if not isinstance(given, list | tuple):
        return None
    texts = [passage_text(each) for each in given if not isinstance(each, list | tuple)]
    return None if len(texts) < len(given) or None in texts else "\n\n".join(filter(None, texts))


def first_answer(given: object) -> object:
    """The answer; the first of several that are all right, such as SQuAD's `answers`; an empty list if there is none."""
    listed = given.get("text") if isinstance(given, Mapping) else given
    if not isinstance(listed, list | tuple):
        return given if listed is None else listed
    texts = [each.get("text") if isinstance(each, Mapping) and "text" in each else each for each in listed]
    return texts[0] if texts and all(isinstance(text, str) for text in texts) else listed


def columns_read(row: Mapping[str, object], answers: Iterable[str] = ANSWERS) -> set[str]:
    """Columns of a row that its chat is made of."""
    marks = {name for name in MARK_KEYS if name in row and _verdict(row, name) is not None}
    marks |= {name for name in (*SWITCHES, MASKED) if isinstance(row.get(name), list | tuple)}
    read = marks | {name for name in SYSTEMS if system_parts(row.get(name)) is not None}
    listed = first_of(row, LISTS)
    if listed:
        return read | {listed, *below(row, listed)}
    answer, asked = first_of(row, answers), first_of(row, QUESTIONS)
    choices = {*CHOICES, *CHOICE_ANSWERS, *CHOICE_COLUMNS, "label"}
    read |= {name for name in (answer, asked, HISTORY, reasoning_beside(row, answer)) if name}
    read |= {*below(row, asked)} if asked else set()
    return read | choices if has_choices(row) else read | {*_lettered(row).values()}


def reasoning_beside(row: Mapping[str, object], answer: str | None) -> str | None:
    """The column of the reasoning that belongs to an answer; None where the answer is no text."""
    is_text = answer is not None and isinstance(row[answer], str)
    return next((name for name in REASONINGS if is_text and isinstance(row.get(name), str)), None)


def reasoning_of(turn: Mapping[str, object]) -> str:
    """Reasoning in an assistant's turn; empty for none."""
    texts = (value.strip() for key in REASONINGS if isinstance(value := turn.get(key), str))
    return next(filter(None, texts), "")


def unread_columns(row: Mapping[str, object], read: set[str]) -> Iterator[str]:
    """Columns of a row that hold something and are not read."""
    return (key for key, name in _names_in(row).items() if not {key, name} & read and _holds(row[key]))


def given_turns(given: object) -> object:
    """A list of turns, also where a table keeps it as one JSON text or as columns."""
    return turns_of(parsed(given))


def parsed(given: object) -> object:
    """A list or an object, also where a table keeps it as one JSON text."""
    if isinstance(given, str) and given.lstrip().startswith(("[", "{")):
        with suppress(ValueError):
            return parse_json(given)
    return given


def turns_of(given: object) -> object:
    """A list of turns, also where Hugging Face's `Sequence` keeps it: a list of each column of the turns."""
    if not isinstance(given, Mapping):
        return given
    columns = [column for column in given.values() if isinstance(column, list | tuple)]
    if not columns or len(columns) < len(given) or len({len(column) for column in columns}) > 1:
        return given
    return [dict(zip(given, turn, strict=True)) for turn in zip(*columns, strict=True)]


def unread_of_turns(row: Mapping[str, object], columns: Iterable[str]) -> set[str]:
    """Keys of turns that hold something and are not read, such as `messages.name`."""
    read = {*TURN_TEXTS, *MARK_KEYS, *DETAILS, *REASONINGS}
    unread: set[str] = set()
    for column in columns:
        turns = given_turns(row.get(column))
        for turn in turns if isinstance(turns, list | tuple) else []:
            for key, value in turn.items() if isinstance(turn, Mapping) else ():
                name = known_name(str(key))
                if _holds(value) and (
                    name not in read or (name in REASONINGS and role_of(turn) != "assistant")
                ):
                    unread.add(f"{column}.{key}")
    return unread


def mark_of_row(row: Mapping[str, object]) -> tuple[Literal["marked", "unknown_mark"], str] | None:
    """The reason to leave a row out for a mark, and the mark; None where no mark forbids it."""
    for name in MARK_KEYS:
        if name not in row or (name == "label" and has_choices(row)):  # then it is the place of the right one
            continue
        mark = _verdict(row, name)
        # The number of a label may be a class.
        if name in VERDICTS and _holds(row[name]) and (mark is None or _is_number(row[name])):
            return "unknown_mark", f"{name} {row[name]}"
        if mark is False:
            return "marked", f"{name} {row[name]}"
    return None


def masks_of(row: Mapping[str, object], is_answer: Sequence[bool]) -> list[bool] | None:
    """Return which turns may be learnt, by a row's list of marks for all turns or for the answers; None where it has none.

    A list of another length, or with other marks, is a ValueError.
    """
    for name in (*SWITCHES, MASKED):
        marks = parsed(row.get(name))
        if not isinstance(marks, list | tuple) or not marks:
            continue
        learnt = [_verdict({name: mark}, name) for mark in marks]
        if None in learnt or len(learnt) not in (len(is_answer), sum(is_answer)):
            raise ValueError(f"{name} of {len(marks)} marks")
        if len(learnt) == len(is_answer):
            return [mark is True for mark in learnt]
        answers = iter(learnt)
        return [is_one and next(answers) is True for is_one in is_answer]
    return None


def system_parts(given: object) -> object:
    """A system turn beside the messages, as a text or a list of parts; None for what is neither."""
    listed = parsed(given)
    if isinstance(given, str):  # a text may be a JSON object, too
        return (
            listed
            if isinstance(listed, list) and all(isinstance(each, Mapping) for each in listed)
            else given
        )
    if isinstance(listed, Mapping):
        listed = next((listed[key] for key in ("content", "text", "parts") if key in listed), None)
    return listed if isinstance(listed, str | list | tuple) else None


def is_learnt(turn: Mapping[str, object]) -> bool | str:
    """Return True if an answer may be learnt, False if a mark forbids it, or the first mark that says neither."""
    marks = {name: _verdict(turn, name) for name in MARK_KEYS if name in turn and turn[name] is not None}
    for name, mark in marks.items():
        if mark is None and name not in VERDICTS:
            return f"{name} {turn[name]}"
    for name in DETAILS:
        parts = turn.get(name)
        if parts and not (
            isinstance(parts, list | tuple)
            and all(isinstance(part, Mapping) and _truth(part.get("train", True)) for part in parts)
        ):
            return f"{name} of a part"
    return False not in marks.values()


def _verdict(row: Mapping[str, object], name: str) -> bool | None:
    """True if a mark lets an answer be learnt, False if it forbids it, None for a value that says neither."""
    truth = _truth(row[name])
    return truth if truth is None or name != MASKED else not truth


def _truth(value: object) -> bool | None:
    """The truth value that a file holds, also as a table of text writes it."""
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().casefold(), value)
    number = _number(value)
    return bool(number) if number in (0, 1) else None


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and _number(value) is not None


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, bool | int | float | str) else None
    except (ValueError, OverflowError):
        return None


def role_of(turn: object) -> str | None:
    """`user`, `assistant` or `system`; None for what is no turn or has another role."""
    given = with_known_names(turn) if isinstance(turn, Mapping) else {}
    role = given.get("role", given.get("from"))
    return ROLES.get(role.strip().casefold()) if isinstance(role, str) else None


def _holds(value: object) -> bool:
    return value is not None and value == value and value not in ("", [], {}, ())  # noqa: PLR0124  NaN is none
