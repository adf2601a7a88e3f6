"""Write components/anadil/text/languages/codes.tsv: every language that CLDR gives a usual script.

`python scripts/language_codes.py` writes it. Run by hand, with `pip install langcodes language_data
pycld2 py3langid`, when one of them knows more languages; nothing else needs those packages.
"""

import unicodedata
from collections import defaultdict
from pathlib import Path

import langcodes
import py3langid
import pycld2
from langcodes.data_dicts import (
    LANGUAGE_ALPHA3_BIBLIOGRAPHIC,
    LANGUAGE_REPLACEMENTS,
    LIKELY_SUBTAGS,
    NORMALIZED_MACROLANGUAGES,
)

TARGET = Path(__file__).parents[1] / "components/anadil/text/languages/codes.tsv"
OF_CLD2 = {"iw": "he", "jw": "jv", "bh": "bho"}
"""Codes of CLD2 that BCP 47 has given up."""
WITHIN = {"nb": "no", "fil": "tl"}
"""Languages that identifiers call by the name of another."""
IN_DATA_SETS = {"pbt": "ps", "prs": "fa", "quy": "qu", "fuc": "ff"}
"""Individual languages that FLORES and FineWeb2 name, and CLDR leaves apart from their macrolanguage."""
OTHER_SCRIPTS = {"zh": "Hant"}
"""Languages of which CLD2 tells a second script by a label of its own."""
HEAD = "id\tiso639_3\tscript\tname\tcld2\tsecond\talso\n"


def main() -> None:
    """Write one line for each language."""
    detected = set(pycld2.DETECTED_LANGUAGES)
    of_cld2 = {
        OF_CLD2.get(code, code): code
        for name, code in pycld2.LANGUAGES
        if name in detected and "-" not in code
    }
    identifier = py3langid.langid.LanguageIdentifier.from_model_file(py3langid.langid.MODEL_FILE)
    second = {str(each) for each in identifier.labels}
    also = other_ids({*LIKELY_SUBTAGS, *of_cld2})
    given_up = {each for ids in also.values() for each in ids}
    rows = []
    for code in sorted({*LIKELY_SUBTAGS, *of_cld2} - given_up):
        language = langcodes.Language.get(LIKELY_SUBTAGS.get(code, code))
        if "-" in code or code == "und" or not language.script or not language.language:
            continue
        try:
            alpha3 = langcodes.Language.get(code).to_alpha3()
        except LookupError:
            continue
        name = unicodedata.normalize("NFC", langcodes.Language.get(code).display_name())
        if name.startswith("Unknown"):
            continue
        called = WITHIN.get(code, code)
        labels = of_cld2.get(called, ""), called if called in second else ""
        rows.append(
            "\t".join((code, alpha3, language.script, name, *labels, " ".join(sorted(also[code] - {alpha3}))))
        )
        if other := OTHER_SCRIPTS.get(code):
            assert any(tag == f"{code}-{other}" for _, tag in pycld2.LANGUAGES)
            rows.append("\t".join((f"{code}-{other}", alpha3, other, name, f"{code}-{other}", labels[1], "")))
    TARGET.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


def other_ids(codes: set[str]) -> defaultdict[str, set[str]]:
    """By id of a row, other ids of the same language: given up, bibliographic, and the individual one that a macrolanguage usually is."""
    also: defaultdict[str, set[str]] = defaultdict(set)
    of_books = {alpha3: code for code, alpha3 in LANGUAGE_ALPHA3_BIBLIOGRAPHIC.items()}
    for other, code in (of_books | LANGUAGE_REPLACEMENTS | NORMALIZED_MACROLANGUAGES | IN_DATA_SETS).items():
        code = NORMALIZED_MACROLANGUAGES.get(code, code)  # noqa: PLW2901  twi is tw, which is ak
        if code in codes and "-" not in other and other != "tl":  # which CLD2 and corpora say, not fil
            also[code].add(other)
    return also


if __name__ == "__main__":
    main()
