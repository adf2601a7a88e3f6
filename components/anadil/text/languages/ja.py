"""Japanese."""

import re
import unicodedata

from anadil.text.filter_limits import FilterLimits
from anadil.text.japanese import remove_footer, unify_punctuation
from anadil.text.language import Language
from anadil.text.unicode_repair import apply_until_stable, normalize_spaces, repair_characters

KANA = frozenset(map(chr, [*range(0x3041, 0x3097), *range(0x30A1, 0x30FB)]))
RUNS = re.compile(
    "[\u3005\u3400-\u4dbf\u4e00-\u9fff]+|[\u3041-\u309f]+|[\u30a1-\u30ff]+|[^\\W\\d_\u3005\u3041-\u30ff\u3400-\u9fff]+"
    "|\\d+"
)
"""Kanji, hiragana, katakana, other letters, digits: each maximal run is a word; signs are none.

A run of kanji and the okurigana after it are two words: to join them needs a dictionary.
"""
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
    unified = unify_punctuation(repair_characters(text))
    return remove_footer(normalize_spaces(unicodedata.normalize("NFKC", unified)))


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
        # 0.3 % of 641 good texts have more of them, four in five of those whose words were shuffled.
        max_broken_sentences=0.15,
        # FineWeb2 jpn_Jpan
        max_top_3gram=0.196,
        max_top_4gram=0.172,
        max_duplicate_6grams=0.225,
        max_duplicate_7grams=0.207,
        max_duplicate_8grams=0.19,
        max_duplicate_9grams=0.175,
        max_duplicate_10grams=0.159,
        min_line_ends=0.096,
        # A word is a run of characters here, of which a line has fewer than Sudachi finds: not FineWeb2's .13.
        max_new_lines=0.3,
        # Swallow, arXiv:2404.17733, section 3.2, and swallow-corpus, quality.py: apply_v1
        min_chars=400,
        min_japanese_chars=400,
        min_japanese=0.5,
        min_hiragana=0.2,
        max_katakana=0.5,
        min_mean_sentence=20,
        max_mean_sentence=90,
        max_longest_sentence=200,
        max_ellipsis_sentences=0.2,
        max_duplicate_sentences=0.3,
        max_duplicate_sentence_chars=0.2,
        max_top_char_2gram=0.2,
        max_top_char_3gram=0.18,
        max_top_char_4gram=0.16,
        max_duplicate_char_5grams=0.15,
        max_duplicate_char_6grams=0.14,
        max_duplicate_char_7grams=0.13,
        max_duplicate_char_8grams=0.12,
        max_duplicate_char_9grams=0.11,
        max_duplicate_char_10grams=0.10,
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
