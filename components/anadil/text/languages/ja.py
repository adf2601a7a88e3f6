"""Japanese: words without spaces, NFKC, punctuation, footers. The pack holds the rest."""

import re
import unicodedata

from anadil.text.unicode_repair import apply_until_stable, normalize_spaces, repair_characters

JAPANESE = "\u3005\u3041-\u309f\u30a1-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
RUNS = re.compile(
    "[\u3005\u3400-\u4dbf\u4e00-\u9fff]+|[\u3041-\u309f]+|[\u30a1-\u30ff]+|[^\\W\\d_\u3005\u3041-\u30ff\u3400-\u9fff]+"
    "|\\d+"
)
"""Kanji, hiragana, katakana, other letters, digits: each maximal run is a word; signs are none.

A run of kanji and the okurigana after it are two words: to join them needs a dictionary.
"""
WIDE_COMMA = re.compile(f"(?<=[{JAPANESE}])，(?![\uff10-\uff5a])")
WIDE_STOP = re.compile(f"(?<=[{JAPANESE}])．(?![\uff10-\uff5a])")
FOOTER = re.compile(
    "著作権|無断転載|無断複製|禁じます|プライバシーポリシー|お問い合わせ|お問合せ|サイトマップ|利用規約|ページの先頭|ページトップ"
    "|トップページ|トップへ|ホームへ|前の記事|次の記事|前のページ|次のページ|続きを読む|関連記事|シェア|ツイート|ログイン|会員登録"
    "|運営会社|会社概要|コメントを書く|カテゴリー?|アーカイブ|copyright|all rights reserved|©|powered by",
    re.IGNORECASE,
)
MIN_FOOTER_SHARE = 0.3
"""Share of a line in such words that makes it a footer. Source: swallow-corpus, footer.py."""


def words(text: str) -> list[str]:
    """Maximal runs of one class of characters; there are no spaces to go by."""
    return RUNS.findall(text)


def normalize(text: str) -> str:
    """NFKC, one style of punctuation, no footer, no invisible characters, tidy spaces."""
    return apply_until_stable(_normalize_once, text)


def _normalize_once(text: str) -> str:
    unified = _punctuation(repair_characters(text))
    return _without_footer(normalize_spaces(unicodedata.normalize("NFKC", unified)))


def _punctuation(text: str) -> str:
    """Turn `，．` into `、。` where a document mostly writes those.

    Source: Swallow, arXiv:2404.17733: only after Japanese, not before full-width digits and letters.
    """
    for wide, usual in ((WIDE_COMMA, "、"), (WIDE_STOP, "。")):
        if len(wide.findall(text)) > text.count(usual):
            text = wide.sub(usual, text)
    return text


def _without_footer(text: str) -> str:
    """Cut footer lines off the end, from the last line up, so that no running text goes with them.

    Swallow cuts from the first such line among the last ten; that loses text and, done twice, more.
    """
    lines = text.split("\n")
    end = len(lines)
    while end > 1 and (not lines[end - 1] or _is_footer(lines[end - 1])):
        end -= 1
    return "\n".join(lines[:end]).rstrip()


def _is_footer(line: str) -> bool:
    return sum(len(match[0]) for match in FOOTER.finditer(line)) > MIN_FOOTER_SHARE * len(line)


def is_script(letter: str) -> bool:
    """Whether a letter is kana or kanji."""
    return "\u3005" <= letter <= "\u30ff" or "\u3400" <= letter <= "\u9fff" or letter >= "\U00020000"
