"""Chats out of the handbook that lies in text/eu and text/en, and pages that training never reads.

LibreOffice's handbook has the same pages and paragraphs in each language, with the same names. So two paragraphs of one
name are a translation, and a page's heading with its first paragraph is an explanation. One page of 20 moves to
heldout/: questions come from these pages, and only from paragraphs that no other page repeats.
"""

import hashlib
import html
import json
import re
from pathlib import Path

PARAGRAPH = re.compile(r'<(h1|p) id="([^"]+)"[^>]*>(.*?)</\1>', re.DOTALL)
TAG = re.compile(r"<[^>]+>")
HELD_OUT_OF_256 = 13
MOST = {"translation": 1000, "explanation": 400}
QUESTIONS = {"translation": 60, "explanation": 20}

Page = dict[str, tuple[str, str]]
Chat = tuple[str, str, str]


def page(file: Path) -> Page:
    """Return tag and text of each paragraph of the page's body, by the paragraph's name."""
    body = file.read_text(encoding="utf-8").partition('id="DisplayArea"')[2].partition('id="SearchFrame"')[0]
    return {
        name: (tag, " ".join(html.unescape(TAG.sub("", text)).split()))
        for tag, name, text in PARAGRAPH.findall(body)
        if 'class="switch' not in text  # one text for each system, run together
    }  # fmt: skip


def chats(basque: Page, english: Page) -> list[Chat]:
    """Return kind, question and answer of each chat that a page gives."""
    pairs = []
    for name, (_, text) in basque.items():
        source = english.get(name, ("", ""))[1]
        if 4 <= len(source.split()) <= 25 and source != text and text.endswith("."):
            pairs.append(("translation", f"Translate into Basque: {source}", text))
    heading = next((text for tag, text in basque.values() if tag == "h1"), "")
    first = next((text for tag, text in basque.values() if tag == "p" and text.endswith(".")), "")
    if heading and 6 <= len(first.split()) <= 40:
        pairs.append(("explanation", f"Zertarako da hau: {heading}?", first))
    return pairs


def digest(text: str) -> bytes:
    """Return what sorts and samples texts, the same on every machine."""
    return hashlib.sha256(text.encode()).digest()


def write(file: Path, rows: list[Chat], most: dict[str, int]) -> None:
    """Write at most so many chats of each kind, a sample. No question and no answer stands there twice."""
    seen: set[str] = set()
    left = dict(most)
    with file.open("w", encoding="utf-8") as lines:
        for kind, question, answer in sorted(rows, key=lambda row: digest(row[1])):
            if left[kind] and not {question, answer} & seen:
                seen |= {question, answer}
                left[kind] -= 1
                turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
                lines.write(json.dumps({"messages": turns}, ensure_ascii=False) + "\n")


def main() -> None:
    """Move pages to heldout/ and write chats.jsonl and questions.jsonl."""
    for file in sorted(Path("text").rglob("*.html")):
        inside = file.relative_to("text")
        name = "/".join(inside.parts[1:])  # the same in each language
        if digest(name)[0] < HELD_OUT_OF_256:
            target = Path("heldout") / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            file.rename(target)
    rows: dict[str, list[Chat]] = {}
    known: set[str] = set()
    for part in ("text", "heldout"):
        rows[part] = []
        for file in sorted(Path(part, "eu").rglob("*.html")):
            english = Path(part, "en") / file.relative_to(Path(part, "eu"))
            if english.is_file():
                basque = page(file)
                rows[part] += chats(basque, page(english))
                if part == "text":
                    known |= {text for _, text in basque.values()}
    write(Path("chats.jsonl"), rows["text"], MOST)
    write(Path("questions.jsonl"), [row for row in rows["heldout"] if row[2] not in known], QUESTIONS)


if __name__ == "__main__":
    main()
