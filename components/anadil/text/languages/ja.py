"""Japanese: words without spaces, NFKC, one style of punctuation, no footer of the page. The pack holds the rest.

Source: Swallow Corpus, arXiv:2404.17733, section 3.3, and swallow-corpus, kutoten.py and footer.py.
"""

import itertools
import re
import unicodedata

from anadil.text.unicode_repair import apply_until_stable, is_sound, normalize_spaces, repair_characters

RUNS = re.compile(
    "[\u3005\u3400-\u4dbf\u4e00-\u9fff]+|[\u3041-\u309f]+|[\u30a1-\u30ff]+|[^\\W\\d_\u3005\u3041-\u30ff\u3400-\u9fff]+"
    "|\\d+"
)
"""Kanji, hiragana, katakana, other letters, digits: each maximal run is a word; signs are none.

A run of kanji and the okurigana after it are two words: to join them needs a dictionary.
"""

WORD_UNIT = "a run of kanji, of hiragana, of katakana, of other letters or of digits"
JAPANESE = "\u3005-\u3007\u303b\u3041-\u3096\u30a1-\u30fa\u30fc\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
CLOSERS = "）」』］〕】〉》"
WIDE = "\uff10-\uff19\uff21-\uff3a\uff41-\uff5a"
"""Full-width digits and letters: between these a comma or stop belongs to a number or a name."""
STYLES = (("，", "、"), ("．", "。"))
AFTER_JAPANESE = {
    mark: re.compile(f"(?<=[{JAPANESE}{CLOSERS}]){mark}+(?![{WIDE}])") for pair in STYLES for mark in pair
}
ANYWHERE = {wide: re.compile(f"(?<=[^{WIDE}]){wide}+(?![{WIDE}])") for wide, _ in STYLES}
FOOTER_WORDS = (
    # Rights
    "無断転載を禁じ", "無断転載を禁ず", "無断転載", "無断複製", "禁じます", "著作権", "copyright", "©", "rights reserved",
    "right reserved", "reserved", "rights", "inc.", "powered by",
    # The site
    "トップページ", "トップへ", "ホームへ", "サイトマップ", "サイトポリシー", "サイト利用規約", "このサイトについて",
    "サイト内検索", "サイト", "ご利用規約", "利用規約", "プライバシーポリシー", "特定商取引法に基づく表記", "会社概要",
    "会社案内", "運営会社", "お問い合わせ", "お問合せ", "問い合わせ", "資料請求", "ヘルプ", "お知らせ", "管理者ページ",
    "検索", "プロフィール", "カテゴリー", "カテゴリ", "アーカイブ", "バナー", "その他",
    # Other pages
    "ページの先頭", "ページトップ", "前の記事", "次の記事", "前のページ", "次のページ", "続きを読む", "関連記事", "最近記事",
    "記事", "全部見る", "一覧を見る", "一覧へ", "詳細表示", "ピックアップ", "トピックス", "ランキング", "固定リンク",
    "リンク", "link", "http",
    # Accounts
    "ログイン", "ログアウト", "マイページ", "新規会員登録", "新規登録", "会員登録", "受け取る", "ポイント",
    # Comments and shares
    "この記事へのトラックバック一覧", "トラックバック", "コメントを書く", "コメント", "comments", "いいね", "シェア", "ツイート",
    "twitter", "共有", "follow",
    # Advertising
    "sponsored link", "sponsored", "スポンサー", "広告掲載", "アフィリエイト", "クリックお願い", "クリック", "pr",
)  # fmt: skip
"""Source: swallow-corpus, footer.py, and pages of our own."""
FOOTER = re.compile("|".join(map(re.escape, sorted(FOOTER_WORDS, key=len, reverse=True))), re.IGNORECASE)
MIN_FOOTER_SHARE = 0.3
"""Share of a line in such words that makes it a footer. Source: swallow-corpus, footer.py."""
FOOTER_LINES = 10  # Last lines in which a footer may begin. Source: swallow-corpus, footer.py.
MAX_FOOTER_CHARS = 150  # A longer line is no footer
MAX_BETWEEN_CHARS = 30  # A line between footers that is no longer, and ends no sentence, goes with them
SQUARES = {
    each: "".join(chr(int(code, 16)) for code in unicodedata.decomposition(each).split()[1:])
    for each in "㎟㎠㎡㎢㎣㎤㎥㎦㎨㎯"
}
"""Units with an exponent in one character."""
VALUES = re.compile(
    f"[\u00aa\u00b2\u00b3\u00b9\u00ba\u00bc-\u00be\u2070-\u209c\u2150-\u215f\u2189{''.join(SQUARES)}]+"
)
"""Raised and lowered characters, and vulgar fractions: NFKC would make 105 of 10⁵, and 31⁄2 of 3½."""
SENTENCE_ENDS = tuple("。！？!?」』…")


def words(text: str) -> list[str]:
    """Maximal runs of one class of characters; there are no spaces to go by."""
    return RUNS.findall(text)


def normalize(text: str) -> str:
    """NFKC but for raised figures and fractions, one style of punctuation, no footer, no invisible characters, tidy spaces."""
    return apply_until_stable(_normalize_once, text)


def _normalize_once(text: str) -> str:
    sound = is_sound(text)
    unified = unify_punctuation(text if sound else repair_characters(text))
    composed = compatible(unified)
    # NFKC may make spaces of what was none.
    return remove_footer(composed if sound and composed == unified else normalize_spaces(composed))


def is_script(letter: str) -> bool:
    """True for kana and kanji."""
    return "\u3005" <= letter <= "\u30ff" or "\u3400" <= letter <= "\u9fff" or letter >= "\U00020000"


def compatible(text: str) -> str:
    """Text in Unicode form NFKC, but for the characters that say what a number is."""
    composed = unicodedata.normalize("NFKC", text)
    if composed == text or not VALUES.search(text):
        return composed
    ends = [0, *(end for match in VALUES.finditer(text) for end in match.span()), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(ends)]
    parts[::2] = (unicodedata.normalize("NFKC", part) for part in parts[::2])
    parts[1::2] = ("".join(SQUARES.get(each, each) for each in part) for part in parts[1::2])
    return unicodedata.normalize("NFC", "".join(parts))


def unify_punctuation(text: str) -> str:
    """Turn `，．` into `、。`: all if a document mostly writes those, else those after Japanese."""
    for wide, usual in STYLES:
        if wide not in text:
            continue
        is_wide = len(AFTER_JAPANESE[wide].findall(text)) > len(AFTER_JAPANESE[usual].findall(text))
        pattern = ANYWHERE[wide] if is_wide else AFTER_JAPANESE[wide]
        text = pattern.sub(lambda match, mark=usual: mark * len(match[0]), text)  # type: ignore[misc]
    return text


def remove_footer(text: str) -> str:
    """Cut the text before the first footer line of the last ten, whatever stands between the footers.

    Idempotent, where Swallow's, which cuts running text after it too, loses more each time.
    """
    lines = text.split("\n")
    end = len(lines)
    seen = 0
    # The first line is never a footer: a page that is nothing else would be empty.
    for index in range(len(lines) - 1, 0, -1):
        line = lines[index]
        if not line:
            continue
        seen += 1
        if seen > FOOTER_LINES:
            break
        if len(line) <= MAX_FOOTER_CHARS and (
            sum(len(match[0]) for match in FOOTER.finditer(line)) > MIN_FOOTER_SHARE * len(line)
        ):
            end = index
        elif len(line) > MAX_BETWEEN_CHARS or line.endswith(SENTENCE_ENDS):
            break  # running text is no footer, whatever stands above it
    return "\n".join(lines[:end]).rstrip()
