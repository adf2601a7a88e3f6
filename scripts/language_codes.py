"""Write components/anadil/text/languages/codes.tsv: every language that CLDR gives a usual script.

`python scripts/language_codes.py` writes it. Run by hand, with `pip install langcodes language_data
pycld2 py3langid`, when one of them knows more languages; nothing else needs those packages.
"""

import unicodedata
from pathlib import Path

import langcodes
import py3langid
import pycld2
from langcodes.data_dicts import LIKELY_SUBTAGS

TARGET = Path(__file__).parents[1] / "components/anadil/text/languages/codes.tsv"
OF_CLD2 = {"iw": "he", "jw": "jv", "bh": "bho"}
"""Codes of CLD2 that BCP 47 has given up."""
WITHIN = {"nb": "no", "fil": "tl"}
"""Languages that identifiers call by the name of another."""
HEAD = "id\tiso639_3\tscript\tname\tcld2\tsecond\n"


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
    rows = []
    for code in sorted({*LIKELY_SUBTAGS, *of_cld2}):
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
        rows.append("\t".join((code, alpha3, language.script, name, *labels)))
    TARGET.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
