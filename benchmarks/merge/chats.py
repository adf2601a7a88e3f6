"""Chats about real sentences, in English and Azerbaijani: four kinds of question whose answers are one line and known.

Sentences are those of Tatoeba's pairs. A sentence is in the held-out part in both languages or in neither.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

Chat = dict[str, str]
FILE = "qa/az_translation_tatoeba.jsonl"
HELD_OUT_OF = 4
"""One sentence of so many, by its hash, is asked about and not trained on."""
TEMPLATES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "en": (
        ("What is the last word of this sentence? {text}", "The last word is: {last}."),
        ("What is the first word of this sentence? {text}", "The first word is: {first}."),
        ("How many words does this sentence have? {text}", "This sentence has {count} words."),
        ("Is this sentence a question? {text}", "{yes_en}"),
    ),
    "az": (
        ("Bu cümlənin son sözü hansıdır? {text}", "Son söz budur: {last}."),
        ("Bu cümlənin ilk sözü hansıdır? {text}", "İlk söz budur: {first}."),
        ("Bu cümlədə neçə söz var? {text}", "Bu cümlədə {count} söz var."),
        ("Bu cümlə sualdır? {text}", "{yes_az}"),
    ),
}
YES = {
    "en": ("No, this sentence is not a question.", "Yes, this sentence is a question."),
    "az": ("Xeyr, bu cümlə sual deyil.", "Bəli, bu cümlə sualdır."),
}


def pairs() -> list[dict[str, str]]:
    """Sentences in both languages, each once."""
    by_english: dict[str, dict[str, str]] = {}
    with (Path(os.environ["ANADIL_DATA"]) / FILE).open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            order, asked = row["prompt"].split(": ", 1)
            is_az = order.startswith("Bu cümləni Azərbaycan")
            az, en = (asked, row["response"]) if is_az else (row["response"], asked)
            by_english.setdefault(en, {"az": az, "en": en})
    return list(by_english.values())


def is_held_out(pair: Mapping[str, str]) -> bool:
    """Tell whether a sentence is asked about and not trained on."""
    return int(hashlib.sha256(pair["en"].encode()).hexdigest()[:8], 16) % HELD_OUT_OF == 0


def chats(language: str, count: int, *, held_out: bool) -> list[Chat]:
    """Make chats of a language, of each kind as many."""
    sentences = [pair[language] for pair in pairs() if is_held_out(pair) == held_out][:count]
    return [chat(language, at, text) for at, text in enumerate(sentences)]


def chat(language: str, kind: int, text: str) -> Chat:
    """Ask about a sentence."""
    words = [word.strip(".,;:!?\"'()") for word in text.split()]
    question, answer = TEMPLATES[language][kind % len(TEMPLATES[language])]
    values = {
        "text": text, "first": words[0], "last": words[-1], "count": str(len(words)),
        "yes_en": YES["en"]["?" in text], "yes_az": YES["az"]["?" in text],
    }  # fmt: skip
    return {"prompt": question.format(**values), "response": answer.format(**values)}
