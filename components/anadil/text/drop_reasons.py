"""Reasons why a row of chats or of pairs is dropped, and the remedy for each."""

from typing import Literal

Reason = Literal[
    "no_chat", "malformed", "not_text", "tool_turn", "unknown_role", "role_order", "no_answer", "empty_message", "no_choice",
    "no_passage", "marked", "unknown_mark", "not_unicode", "template", "too_long", "duplicate", "near_duplicate",
    "evaluation_question", "bad_row", "no_pair", "other_question", "same_answer", "question_in_answer",
]  # fmt: skip
DROP_REMEDIES: dict[Reason, str] = {
    "no_chat": "a row needs `messages`, `conversations`, or a question and its answer, such as `prompt` and `response`; "
    "finetune.columns names columns of other names, such as {question: Q, answer: A}",
    "malformed": "each message needs the texts `role` and `content`, or `from` and `value`",
    "not_text": "only text can be trained on; take images and sounds out",
    "tool_turn": "calls and results of tools cannot be trained on; take such chats out, or write them as text",
    "unknown_role": "roles are user (human), assistant (gpt, model) and system (developer)",
    "role_order": "turns must be user, assistant, user, assistant, ..., after at most one system turn",
    "no_answer": "a chat needs an assistant turn, from which the model learns",
    "empty_message": "a message needs text",
    "no_choice": "beside `choices` a row needs the right one as `answer`: its text, letter (A, B, ...) or place",
    "no_passage": "what a question is about must be a text or a list of texts",
    "marked": "the data set marks its answer as bad or as not to be learnt; take that column out if it means something else",
    "unknown_mark": "a mark of an answer is true or false; write it so, and give the column another name where it says something "
    "else",
    "not_unicode": "text holds half a surrogate pair; write it as UTF-8",
    "template": "the base's chat template cannot write it; change the chat",
    "too_long": "shorten the chats or raise finetune.max_length",
    "duplicate": "another chat says the same",
    "near_duplicate": "another chat says nearly the same",
    "evaluation_question": "evaluate asks it, so no model may learn its answer",
    "bad_row": "a row of a table has a cell for each name of the first row, in the file's encoding; put a text that holds the "
    "separator, a quote or a line end between quotes, and write a quote in it twice",
    "no_pair": "a row of pairs needs `chosen` and `rejected`, and a `prompt` unless both are whole chats",
    "other_question": "both chats of a pair must be the same up to their last answer",
    "same_answer": "the answers of a pair must differ",
    "question_in_answer": "both answers begin with the question, which would be learnt; cut it off",
}
HARMLESS: tuple[Reason, ...] = ("duplicate", "near_duplicate", "evaluation_question")
"""Reasons to drop a good chat on purpose."""
