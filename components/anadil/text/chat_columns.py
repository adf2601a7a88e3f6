"""Columns of a row of chats: which of them are read, and which mark an answer as bad or as not to be learnt."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Literal

from anadil.text.choices import CHOICE_ANSWERS, CHOICE_COLUMNS

LISTS = ("messages", "conversations", "conversation")
QUESTIONS = ("prompt", "instruction", "question", "query", "input")
"""Columns that hold what is asked, the first before the others."""
INSTRUCTION = "instruction"
PASSAGES = ("input", "context", "contexts", "passage", "paragraph", "document", "documents")
"""Columns of what a question is about, which stands below it."""
ANSWERS = ("response", "completion", "output", "answer")
REASONINGS = ("reasoning_content", "reasoning", "thinking")
"""Keys of what an assistant thinks before its answer: DeepSeek's and Qwen's, OpenRouter's, gpt-oss's."""
HISTORY = "history"
"""Column of LLaMA-Factory's Alpaca layout: pairs of what was asked and answered before."""
SYSTEMS = ("system", "system_prompt")
CHOICES = "choices"
TURN_TEXTS = ("role", "from", "content", "value")
PASSAGE_TEXTS = ("text", "content")
"""Keys that hold the text where a passage is an object."""

ROLES = {
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "system": "system", "developer": "system",
}  # fmt: skip
VERDICTS = (
    "label", "kto_tag", "is_correct", "correct", "is_good", "good", "is_desirable", "desirable", "rating", "feedback",
    "quality", "verdict",
)  # fmt: skip
"""Columns that say whether an answer is good: TRL's and ms-swift's KTO (`label`), LLaMA-Factory's (`kto_tag`),
OpenMathInstruct's (`is_correct`), and what feedback of users is exported as."""
NUMBERED = ("correct", "rating", "feedback", "quality", "verdict")
"""Those whose numbers are places of a choice, or marks of a scale that nobody names."""
SWITCHES = ("train", "training", "trainable", "loss", "loss_scale", "weight", "learn")
"""Keys that say whether an answer is learnt: axolotl's `train` and `training`, ms-swift's `loss` and `loss_scale`, OpenAI's
`weight`."""
MASKED = "masked"
"""torchtune's, which says the opposite."""
MARKS: Mapping[str, bool] = {
    "true": True, "1": True, "1.0": True, "yes": True, "good": True, "correct": True, "right": True, "chosen": True,
    "accepted": True, "desirable": True, "thumbs_up": True,
    "false": False, "0": False, "0.0": False, "no": False, "bad": False, "wrong": False, "incorrect": False,
    "rejected": False, "undesirable": False, "thumbs_down": False,
}  # fmt: skip
"""Values of a mark, in small letters."""
MAX_LABELS = 10_000
"""Rows of a file that are looked at to tell marks in `label` from classes."""

ChatColumn = Literal["messages", "question", "answer", "system", "context"]
Names = Mapping[ChatColumn, str]
"""What a column is -> its name in the user's files: `finetune.columns`."""
ALIASES: Mapping[ChatColumn, tuple[str, ...]] = {
    "messages": LISTS,
    "question": (*LISTS, *(name for name in QUESTIONS if name not in PASSAGES)),
    "answer": (*LISTS, *ANSWERS),
    "system": SYSTEMS,
    "context": PASSAGES,
}
"""What a column is -> the columns that one of the user's names takes the place of."""
MARKS_OF_ROWS = frozenset(
    [
        "id",
        "_id",
        "idx",
        "index",
        "uid",
        "uuid",
        "row_id",
        "conversation_id",
        "message_id",
        "sha256",
        "hash",
        "url",
        "uri",
        "source",
        "dataset",
        "split",
        "lang",
        "language",
        "locale",
        "date",
        "time",
        "timestamp",
        "created",
        "created_at",
        "updated_at",
        "licence",
        "license",
        "model",
        "version",
    ]
)
"""Names of columns that tell where a row comes from: they are counted, and nobody misses their text."""


def with_names(row: dict[str, object], columns: Names) -> dict[str, object]:
    """A row with the columns that a recipe names, under the names that are read."""
    named = {role: column for role, column in columns.items() if column in row}
    if not named:
        return row
    replaced = {*named.values(), *(alias for role in named for alias in ALIASES[role])}
    rest = {key: value for key, value in row.items() if key not in replaced}
    return {**rest, **{role: row[column] for role, column in named.items()}}


def first_of(row: Mapping[str, object], names: Iterable[str]) -> str | None:
    """The first of some columns that holds something."""
    return next((name for name in names if row.get(name) is not None), None)


def below(row: Mapping[str, object], asked: str) -> list[str]:
    """The columns whose texts belong below what a column asks."""
    names = (*PASSAGES, "question", "query") if asked == INSTRUCTION else PASSAGES
    return [name for name in names if name != asked and _holds(row.get(name)) and not _is_number(row[name])]


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


def columns_read(row: Mapping[str, object], answers: Iterable[str] = ANSWERS) -> set[str]:
    """The columns of a row that its chat is made of."""
    marks = {name for name in (*VERDICTS, *SWITCHES) if _verdict(row, name) is not None}
    read = marks | {name for name in SYSTEMS if isinstance(row.get(name), str)}
    listed = first_of(row, LISTS)
    if listed:
        return read | {listed}
    answer, asked = first_of(row, answers), first_of(row, QUESTIONS)
    choices = {CHOICES, *CHOICE_ANSWERS, *CHOICE_COLUMNS, *(["label"] if CHOICE_COLUMNS[0] in row else [])}
    read |= {name for name in (answer, asked, HISTORY, reasoning_beside(row, answer)) if name}
    return (
        read
        | ({*below(row, asked)} if asked else set())
        | (choices if CHOICES in row or CHOICE_COLUMNS[0] in row else set())
    )


def reasoning_beside(row: Mapping[str, object], answer: str | None) -> str | None:
    """The column of the reasoning that belongs to an answer; None where the answer is no text."""
    is_text = answer is not None and isinstance(row[answer], str)
    return next((name for name in REASONINGS if is_text and isinstance(row.get(name), str)), None)


def reasoning_of(turn: Mapping[str, object]) -> str:
    """What an assistant's turn says that it thinks; empty for nothing."""
    texts = (value.strip() for key in REASONINGS if isinstance(value := turn.get(key), str))
    return next(filter(None, texts), "")


def may_hold_text(column: str) -> bool:
    """Whether a column, or a key of turns as in `messages.id`, may hold text by its name, and no mark of the row."""
    return column.rpartition(".")[2].lower() not in MARKS_OF_ROWS


def unread_columns(row: Mapping[str, object], read: set[str]) -> Iterator[str]:
    """The columns of a row that hold something and are not among those that are read."""
    return (name for name, value in row.items() if name not in read and _holds(value))


def unread_in_turns(turns: object) -> set[str]:
    """The keys of a chat's turns that hold something and are not read; reasoning is, where it is the assistant's text."""
    known = {*TURN_TEXTS, *VERDICTS, *SWITCHES, MASKED}
    listed = turns if isinstance(turns, list | tuple) else []
    return {
        str(key)
        for turn in listed
        if isinstance(turn, Mapping)
        for key, value in turn.items()
        if key not in known and _holds(value)
        if key not in REASONINGS or not isinstance(value, str) or not is_answer(turn)
    }


def is_answer(turn: object) -> bool:
    """Whether a turn is the assistant's."""
    role = turn.get("role", turn.get("from")) if isinstance(turn, Mapping) else None
    return isinstance(role, str) and ROLES.get(role.strip().casefold()) == "assistant"


def marked_by(row: Mapping[str, object]) -> str:
    """The column that marks a row's answers as bad or as not to be learnt; empty if none does."""
    return next((name for name in (*VERDICTS, *SWITCHES) if _verdict(row, name) is False), "")


def is_learnt(turn: Mapping[str, object]) -> bool | str:
    """Whether the marks of an answer let it be learnt, or the first mark that says neither."""
    learnt = True
    for name in (*SWITCHES, MASKED):
        value = turn.get(name)
        mark = mark_of(value)
        if value is not None and mark is None:
            return f"{name} {value}"
        learnt = learnt and (value is None or mark is (name != MASKED))
    return learnt and all(_verdict(turn, name) is not False for name in VERDICTS)


def mark_of(value: object) -> bool | None:
    """What a mark says; None where it is none."""
    return MARKS.get(str(value).strip().casefold()) if isinstance(value, bool | int | float | str) else None


def may_be_class(row: Mapping[str, object]) -> bool:
    """Whether `label` may be a mark as well as one of two classes: only true and false are surely marks."""
    value = row.get("label")
    of_choices = CHOICES in row or CHOICE_COLUMNS[0] in row
    return not of_choices and not isinstance(value, bool) and mark_of(value) is not None


def labels_are_marks(rows: Iterable[Mapping[str, object]]) -> bool:
    """Whether what `label` says in a file marks answers: those of a class are few, and come again and again.

    Args:
        rows: The rows of the file.
    """
    answers: list[str] = []
    for row in islice(rows, MAX_LABELS):
        mark = mark_of(row.get("label"))
        if mark is None and row.get("label") is not None:
            return False
        if mark is False:
            name = first_of(row, (*ANSWERS, *LISTS))
            answers.append(str(row[name]) if name else "")
    return 2 * len(set(answers)) > len(answers)


def _verdict(row: Mapping[str, object], name: str) -> bool | None:
    """What a mark of a row says; None where it says nothing that is known."""
    value = row.get(name)
    if name == "label" and not isinstance(value, bool):  # see `labels_are_marks`
        return None
    return None if name in NUMBERED and _is_number(value) else mark_of(value)


def _is_number(value: object) -> bool:
    text = str(value).strip().lstrip("+-") if isinstance(value, int | float | str) else ""
    return text.replace(".", "", 1).isdecimal()


def _holds(value: object) -> bool:
    return value is not None and value not in ("", [], {}, ())
