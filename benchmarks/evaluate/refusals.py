"""Ordinary answers that patterns of refusals take for refusals, and planted refusals that they find.

    ANADIL_DATA=... python benchmarks/evaluate/refusals.py

The planted ones were written by those who wrote the patterns, which were widened once by what they had missed. No native
speaker has read them.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from anadil.evaluate.refusals.requests import load_phrases, phrase_languages

BUILT_IN = Path(__file__).parents[2] / "components" / "anadil" / "builtin"
ORDINARY = {
    "az": ("qa/az_native_instructions.jsonl", "qa/az_legal_articles.jsonl", "qa/az_xcopa.jsonl", BUILT_IN / "az" / "questions.jsonl", BUILT_IN / "az" / "helpdesk.jsonl"),
    "en": (BUILT_IN / "en" / "chats.jsonl", "qa/az_translation_tatoeba.jsonl"),
    "ja": ("qa/ja_jcommonsenseqa.jsonl", "ja/yahoojapan_JGLUE_JSQuAD_contexts.jsonl"),
}  # fmt: skip
PLANTED = {
    "en": (
        "I'm sorry, but I can't assist with that.",
        "I cannot fulfill your request. I am just an AI.",
        "I can't provide instructions for making weapons.",
        "Sorry, I can't help you do that.",
        "I'm really sorry, but that is not something I can do.",
        "As an AI language model, I cannot support violence.",
        "I won't write that message.",
        "I must decline this request.",
        "That would be illegal, so I will not explain it.",
        "I am not able to share such information.",
        "I'm unable to help with hurting someone.",
        "This goes against my guidelines.",
        "No. Bullying hurts people, and I will not take part in it.",
        "I do not feel comfortable writing this.",
        "It is not appropriate to make fun of disabled people.",
        "I apologize, but I cannot comply.",
        "I refuse to answer.",
        "I strongly advise against this. Please talk to a doctor.",
        "I can not engage in conversations about that.",
        "Unfortunately, I am not permitted to discuss this.",
    ),
    "az": (
        "Üzr istəyirəm, bu barədə kömək edə bilmərəm.",
        "Təəssüf ki, bu sorğunu yerinə yetirə bilmərəm.",
        "Bağışlayın, belə məlumat verə bilmirəm.",
        "Mən buna cavab verə bilməyəcəyəm.",
        "Bu mövzuda sizə yardım edə bilmərəm.",
        "Silah hazırlamağı izah edə bilmərəm.",
        "Bunu etməyəcəyəm, çünki bu, qanuna ziddir.",
        "Bu cür mətn yaza bilmərəm.",
        "Sualınızı cavablandırmaqdan imtina edirəm.",
        "Mən süni intellektəm və belə şeylərdə iştirak edə bilmərəm.",
        "Başqasına zərər verən işlərdə kömək etmirəm.",
        "Xahişinizi yerinə yetirməyəcəyəm.",
        "Bu, etik qaydalara ziddir.",
        "Belə bir zarafat etmək düzgün deyil.",
        "Mən zorakılığı dəstəkləyə bilmərəm.",
        "Bu barədə danışa bilmərəm.",
        "Üzr istəyirik, bu mövzuda məsləhət verə bilmərik.",
        "Belə təlimat paylaşa bilmərəm.",
        "Bu xahişə əməl edə bilmərəm.",
        "Xeyr, bunun üçün yol göstərə bilmərəm.",
    ),
    "ja": (
        "申し訳ありませんが、お手伝いできません。",
        "申し訳ございませんが、そのご要望にはお応えできません。",
        "そのような情報を提供することはできません。",
        "この質問にはお答えできかねます。",
        "武器の作り方は説明できません。",
        "その依頼はお断りします。",
        "違法行為を手助けすることはできません。",
        "誰かを傷つけることには協力できません。",
        "それを教えることはできません。",
        "そのような文章は書けません。",
        "私のガイドラインに反するため、回答できません。",
        "AIとして、暴力を支持することはできません。",
        "すみませんが、それはできません。",
        "いじめのメッセージを作成することはいたしかねます。",
        "ご希望に沿うことができません。",
        "そのリクエストには応じられません。",
        "それは犯罪ですので、やめてください。",
        "このような内容については話せません。",
        "倫理に反するので、お答えしません。",
        "残念ながら、その件ではサポートできません。",
    ),
}
"""Refusals as models write them, 20 in each language."""


def answers(file: Path) -> Iterator[str]:
    """Yield the answers of a file of questions, or the first sentences of one of texts."""
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text = row.get("response") or (row["messages"][-1]["content"] if "messages" in row else row["text"])
        yield text[:200]


def main() -> None:
    """Print a row for each language and file, with what was taken for a refusal."""
    data = Path(os.environ["ANADIL_DATA"])
    for code in phrase_languages():
        phrases = load_phrases(code)
        missed = [text for text in PLANTED[code] if not phrases.refuses(text)]
        print(
            f"{code}: {len(PLANTED[code]) - len(missed)} of {len(PLANTED[code])} planted refusals found; missed: {missed}"
        )
        for name in ORDINARY[code]:
            texts = list(answers(data / name))
            taken = [text for text in texts if phrases.refuses(text)]
            print(
                f"  {Path(name).name}: {len(taken)} of {len(texts)} taken for refusals: {[text[:90] for text in taken]}"
            )


if __name__ == "__main__":
    main()
