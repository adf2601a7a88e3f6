"""Japanese."""

import re
import unicodedata

from anadil.text.language import FilterLimits, Language
from anadil.text.unicode_repair import apply_until_stable, normalize_spaces, repair_characters

KANA = frozenset(map(chr, [*range(0x3041, 0x3097), *range(0x30A1, 0x30FB)]))
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
MIN_KANA_SHARE = 0.2
"""Share of kana among the letters above which text is Japanese: Chinese has none."""


def _words(text: str) -> list[str]:
    """Maximal runs of one class of characters; there are no spaces to go by."""
    return RUNS.findall(text)


def _fold(text: str) -> str:
    """Lower case, for the Latin words."""
    return text.lower()


def _shingle_units(text: str) -> list[str]:
    """Characters without white space."""
    return list("".join(_fold(text).split()))


def _normalize(text: str) -> str:
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


def _is_script(letter: str) -> bool:
    """Whether a letter is kana or kanji."""
    return "\u3005" <= letter <= "\u30ff" or "\u3400" <= letter <= "\u9fff" or letter >= "\U00020000"


def _guard(text: str) -> bool:
    """Whether kana are frequent."""
    num_letters = sum(map(str.isalpha, text))
    return sum(map(KANA.__contains__, text)) > MIN_KANA_SHARE * num_letters


LANGUAGE = Language(
    code="ja",
    name="Japanese",
    words=_words,
    shingle_units=_shingle_units,
    fold=_fold,
    normalize=_normalize,
    is_script=_is_script,
    guard=_guard,
    lookalikes=frozenset({"zh", "zh-Hant", "ko", "un"}),
    own_letters=KANA,
    # Half of what Swallow asks of hiragana alone (.2 of the Japanese letters), as all letters count.
    min_own_letters=0.1,
    stop_words=frozenset(
        "のにをはたてがとで年し・月れさもやへか"
    ),  # FineWeb2, configs/jpn_Jpan.yml, and particles
    stray_letters=frozenset(),
    sentence_ends="。！？!?」』）)…",
    # Half the Latin value: a Japanese sentence has about half the characters.
    min_long_block=70,
    limits=FilterLimits(
        min_words=50,  # Gopher, arXiv:2112.11446, table A1
        max_words=100_000,  # Gopher
        min_mean_word_length=1,  # FineWeb2 jpn_Jpan
        max_mean_word_length=6,  # FineWeb2 jpn_Jpan
        min_alpha_words=0.759,  # FineWeb2 jpn_Jpan
        min_stop_words=2,  # Gopher, FineWeb2
        max_duplicate_lines=0.328,  # FineWeb2 jpn_Jpan
        max_top_ngram=0.239,  # FineWeb2 jpn_Jpan
        max_duplicate_ngrams=0.243,  # FineWeb2 jpn_Jpan
        max_isolated=1.0,  # no letter stands alone by damage
        min_script=0.5,  # Swallow, arXiv:2404.17733
    ),
    prompts=(
        "日本の首都である東京は、",
        "朝早く起きて窓を開けると、",
        "スマートフォンの通信速度が遅いときは、まず",
        "お正月になると、どの家でも",
        "人工知能は私たちの暮らしを",
    ),
    questions=(
        "今月のデータ通信量を確認する方法を教えてください。",
        "海外でスマートフォンを使うには、どうすればよいですか。",
        "自宅のWi-Fiが遅いのですが、何を試せばよいですか。",
        "SIMカードをなくしました。どうすればよいですか。",
        "カレーライスの作り方を簡単に説明してください。",
    ),
)
