"""The statistics of a text in plain Python, from the published rules: what the compiled pass is compared with."""

import re
from collections import Counter
from collections.abc import Sequence

from anadil.text.language_data import Language

MARKS = ".,;:!?\"'()«»“”"
CLOSERS = "\"'”’»)]」』）】›"


def words_of(text: str, language: Language) -> dict[str, float]:
    words = language.words(text)
    total = sum(map(len, words))
    folded = [language.fold(word).strip(MARKS) for word in words]
    stop_words = [word for word in folded if word in language.stop_words]
    letters = [letter for letter in text if letter.isalpha()]
    return {
        "chars": len(text) - text.count("\n\n"),
        "letters": len(letters),
        "script": share(sum(map(language.is_script, letters)), len(letters)),
        "own_letters": share(sum(letter in language.own_letters for letter in text), len(letters)),
        "words": len(words),
        "mean_word_length": share(total, len(words)),
        "longest_word": max(map(len, words), default=0),
        "alpha_words": share(sum(any(map(str.isalpha, word)) for word in words), len(words)),
        "isolated": share(sum(word in language.stray_letters for word in words), len(words)),
        "stop_words": len(set(stop_words)),
        "stop_word_share": share(len(stop_words), len(words)),
        "hashes": text.count("#") / max(1, len(words)),
        "ellipses": (text.count("...") + text.count("…")) / max(1, len(words)),
        "new_lines": re.sub("\n+", "\n", text).count("\n") / max(1, len(words)),
        "curly_brackets": text.count("{"),
        "lorem_ipsum": text.lower().count("lorem ipsum"),
    }


def lines_of(text: str, language: Language) -> dict[str, float]:
    general = "!?…。！？．｡" + ("." if language.code == "az" else "")
    ends = tuple({*language.sentence_ends, *general} - {*":;", *CLOSERS})
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    paragraphs = [
        "\n".join(line.strip() for line in block.split("\n")) for block in re.split(r"\n\s*\n", text.strip())
    ]
    return {
        "lines": len(lines),
        "bullet_lines": share(sum(line[0] in "-*•‣⁃●○■□▪▫◆◇・·" for line in lines), len(lines)),
        "ellipsis_lines": share(sum(line.endswith(("...", "…")) for line in lines), len(lines)),
        "line_ends": (sum((line.rstrip(CLOSERS) or line[0]).endswith(ends) for line in lines) + 1)
        / (len(lines) + 1),
        "short_lines": share(sum(len(line) <= 30 for line in lines), len(lines)),
        "long_lines": sum(len(line) >= 200 for line in lines),
        **duplicates("duplicate_line", lines),
        **duplicates("duplicate_paragraph", [block for block in paragraphs if block]),
    }


def repetition_of(words: Sequence[str]) -> dict[str, float]:
    tops = {f"top_{order}gram": top_ngram_share(words, order) for order in range(2, 5)}
    repeated = {f"duplicate_{order}grams": repeated_ngram_share(words, order) for order in range(5, 11)}
    return tops | repeated


def top_ngram_share(words: Sequence[str], order: int) -> float:
    """Gopher, table A1; 0 if none comes twice."""
    counts = Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
    most = max((count * sum(map(len, ngram)) for ngram, count in counts.items() if count > 1), default=0)
    return share(most, sum(map(len, words)))


def repeated_ngram_share(words: Sequence[str], order: int) -> float:
    """Gopher, table A1; no word counts twice."""
    seen: set[tuple[str, ...]] = set()
    repeated: set[int] = set()
    for start in range(len(words) - order + 1):
        ngram = tuple(words[start : start + order])
        if ngram in seen:
            repeated |= set(range(start, start + order))
        seen.add(ngram)
    return share(sum(len(words[place]) for place in repeated), sum(map(len, words)))


def duplicates(name: str, items: Sequence[str]) -> dict[str, float]:
    """Shares of those that repeat an earlier one, by number and by characters."""
    again = [item for place, item in enumerate(items) if item in items[:place]]
    return {
        f"{name}s": share(len(again), len(items)),
        f"{name}_chars": share(sum(map(len, again)), sum(map(len, items))),
    }


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def swallow_keeps(text: str) -> bool:
    """Whether Swallow's rules of version 1 keep a text, but for blank lines, which are no repeated lines here."""
    sentences_of_lines = [swallow_sentences(line) for line in text.split("\n")]
    sentences = [sentence for line in sentences_of_lines for sentence in line]
    lines = ["".join(line) for line in sentences_of_lines if line]
    hiragana = sum("ぁ" <= letter <= "ゖ" for letter in text)
    katakana = sum("ァ" <= letter <= "ヺ" for letter in text)
    kanji = len(re.findall("[々〇〻\u3400-\u9fff\uf900-\ufaff]", text))
    japanese = hiragana + katakana + kanji + sum(letter in "、，。．！？" for letter in text)
    if min(len(text), japanese) < 400 or japanese < 0.5 * len(text):
        return False
    if hiragana < 0.2 * japanese or katakana > 0.5 * japanese:
        return False
    mean = sum(map(len, sentences)) / len(sentences)
    is_open = [sentence.strip().endswith(("・", "…")) for sentence in sentences]
    if not 20 <= mean <= 90 or max(map(len, sentences)) > 200 or share(sum(is_open), len(is_open)) > 0.2:
        return False
    again = duplicates("line", lines) | duplicates("sentence", sentences)
    if (
        max(again["lines"], again["sentences"]) > 0.3
        or max(again["line_chars"], again["sentence_chars"]) > 0.2
    ):
        return False
    return all(swallow_repetition(text, order) <= limit for order, limit in SWALLOW_NGRAMS.items())


SWALLOW_NGRAMS = {
    2: 0.20, 3: 0.18, 4: 0.16, 5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10,
}  # fmt: skip


def swallow_sentences(line: str) -> list[str]:
    """Runs of what is no end mark, each with the one mark after it."""
    found = []
    sentence = ""
    for letter in line:
        if letter not in "。．！？!?":
            sentence += letter
        elif sentence:
            found.append(sentence + letter)
            sentence = ""
    return [*found, sentence] if sentence else found


def swallow_repetition(text: str, order: int) -> float:
    """Share of the most frequent n-gram of characters; from 5 on, of the different ones that come again."""
    counts = Counter(text[start : start + order] for start in range(len(text) - order + 1))
    if order < 5:
        return share(max(counts.values(), default=0), counts.total())
    return share(sum(count > 1 for count in counts.values()), len(counts))
