import pytest

from anadil.text.language import language_codes, load_language

PYTHON = "def orta(x):\n    if not x:\n        return 0\n\n    cəm = sum(x)\n    return cəm / len(x)"
MAKEFILE = "hamısı:\n\tgcc -O2 -o proqram proqram.c\n\trm -f proqram.o"
YAML = "xidmət:\n  host: 127.0.0.1\n  ports:\n    - 8080\n    - 8443"
C = 'int main(void)\n{\n\tfor (int i = 0; i < 3; i++) {\n\t\tputs("salam");\n\t}\n}'
HTML = "<ul>\n  <li>bir</li>\n  <li>iki</li>\n</ul>"
SQL = "SELECT ad\nFROM kitablar\nWHERE il > 2000\n  AND dil = 'az'"

DOCSTRING = 'class Anbar:\n    """Anbar malları saxlayır.\n\n    Mal gələndə qeyd olunur.\n    Gedəndə silinir.\n    """'
LISP = "(cond\n  (yağış\n     çətir)\n  (qar papaq))"
DIFF = "@@ -1,3 +1,3 @@\n birinci sətir qaldı\n-köhnə\n+yeni\n sonuncu sətir də qaldı"
TREE = "kitab\n  fəsillər\n    giriş\n    son\n  şəkillər"
FOLDER = "kitab/\n  giriş\n  son"
CODES = {
    "python": PYTHON, "make": MAKEFILE, "yaml": YAML, "c": C, "html": HTML, "sql": SQL, "docstring": DOCSTRING,
    "lisp": LISP, "diff": DIFF, "tree": TREE, "folder": FOLDER,
}  # fmt: skip


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
@pytest.mark.parametrize("language", language_codes())
def test_lines_of_code_keep_the_spaces_before_them(language: str, code: str) -> None:
    text = f"Yuxarıdakı nümunəyə baxın.\n\n{code}\n\nBurada isə izah verilir."

    assert load_language(language).normalize(text) == text


@pytest.mark.parametrize(
    "prose",
    [
        "    Səhər açıldı, hamı işə getdi.\nAxşam isə evə qayıtdılar.\n    Gecə sakit keçdi (bax: 3).",
        "Sənədlər:\n    1.1. ərizə;\n    1.2. şəxsiyyət vəsiqəsi (surəti);\n    1.3. arayış.",
        "Yol uzun\n    gecə qısa\n        söz az",
        "\u3000朝になった。\n\u3000みんな仕事に行った。",
        "Gələnlər (hamısı\n  sadalanmır), gedənlər\n  və qalanlar barədə danışdılar.",
        "Lazımdır:\n   un\n   su\n   duz",
        "  If it rains, we stay at home.\n  For the rest of the day we read, while others sleep.",
    ],
)
def test_prose_does_not_keep_the_spaces_before_its_lines(prose: str) -> None:
    expected = "\n".join(line.strip() for line in prose.split("\n"))

    assert load_language("az").normalize(prose) == expected


def test_cells_of_a_table_stay_apart() -> None:
    assert (
        load_language("az").normalize("Şəhər\t\tƏhali \nGəncə \t 335 600\t") == "Şəhər\tƏhali\nGəncə\t335 600"
    )
