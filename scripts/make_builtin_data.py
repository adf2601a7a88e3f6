"""Write the built-in Azerbaijani data of anadil, or check that it is up to date.

    python scripts/make_builtin_data.py            write the files
    python scripts/make_builtin_data.py --check    exit 1 where a file differs

The hand-written sources lie in scripts/builtin_data/.  The same bytes come out
on every run: all choices hang on seeded generators, all dates are fixed.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import random
import re
import sys
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from builtin_data.morphology import capital, conjugate, inflect, number

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "scripts" / "builtin_data"
TARGET = ROOT / "components" / "anadil" / "builtin" / "az"

PAGE_ARTICLES = 30
GENERATED_DOCUMENTS = 256
FIRST_DATE = datetime(2024, 5, 1, 6, 0, 0, tzinfo=UTC)

ORDINALS = ["birinci", "ikinci", "üçüncü", "dördüncü", "beşinci", "altıncı", "yeddinci"]
VERBS = {"vgo", "vfix", "vpick", "vbuy", "vsee", "vplay", "vwork"}
VERBS |= {"vforget", "vsay", "vlearn", "vremem", "vsee2"}


# ------------------------------------------------------------ generated text


def read_lexicon() -> dict[str, list[str]]:
    """Read the stems by class."""
    lexicon: dict[str, list[str]] = {}
    for line in (SOURCE / "lexicon.txt").read_text(encoding="utf-8").splitlines():
        name, _, words = line.partition(": ")
        lexicon[name] = [w.strip() for w in words.split(",")]
    return lexicon


def read_frames() -> dict[str, dict[str, list[str]]]:
    """Read the sentence frames by topic and place in the document."""
    topics: dict[str, dict[str, list[str]]] = {}
    frames: dict[str, list[str]] = {}
    for line in (SOURCE / "frames.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            frames = topics.setdefault(line[3:], {"open": [], "body": [], "close": []})
        elif line:
            part, _, text = line.partition(": ")
            frames[part].append(text)
    return topics


@dataclass
class Writer:
    """Fills frames for one document; numbered slots keep their value."""

    rng: random.Random
    lexicon: dict[str, list[str]]
    bound: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def draw(self, name: str) -> str:
        """Draw a stem of a class that this document has not used yet."""
        if name == "person":
            return self.draw("fname") + " " + self.draw("surname")
        words = self.lexicon[name]
        fresh = [w for w in words if w not in self.used] or words
        word = self.rng.choice(fresh)
        if name not in VERBS:
            self.used.add(word)
        return word

    def slot(self, match: re.Match[str]) -> str:
        """Fill one slot."""
        name, *rest = match.group(1).split(":")
        if name == "ord":
            return self.rng.choice(ORDINALS)
        if name == "w":
            start, stop = (int(x) for x in rest[0].split("-"))
            value = self.rng.randint(start, stop)
            if stop >= 100:
                value = max(10, value // 10 * 10)
            return inflect(number(value), [op for r in rest[1:] for op in r.split(".")])
        ops = [op for r in rest for op in r.split(".")]
        if name in VERBS:
            return conjugate(self.draw(name), ops)
        if name[-1].isdigit():
            if name not in self.bound:
                self.bound[name] = self.draw(name[:-1])
            return inflect(self.bound[name], ops)
        return inflect(self.draw(name), ops)

    def fill(self, frame: str) -> str:
        """Turn a frame into a sentence."""

        def choose(match: re.Match[str]) -> str:
            options: list[str] = match.group(1).split("|")
            return self.rng.choice(options)

        text = re.sub(r"\[([^\[\]]*)\]", choose, frame)
        return capital(re.sub(r"\{([^{}]+)\}", self.slot, text))


def generate() -> list[dict[str, str]]:
    """Generate the documents; no sentence is used in two of them."""
    lexicon, topics = read_lexicon(), read_frames()
    names = list(topics)
    seen: set[str] = set()
    rows: list[dict[str, str]] = []
    for i in range(GENERATED_DOCUMENTS):
        rng = random.Random(f"anadil-az-{i}")
        frames = topics[names[i % len(names)]]
        writer = Writer(rng, lexicon)
        picked = sorted(rng.sample(range(len(frames["body"])), rng.randint(9, 12)))
        chosen = [rng.choice(frames["open"])]
        chosen += [frames["body"][j] for j in picked]
        chosen.append(rng.choice(frames["close"]))
        sentences: list[str] = []
        for frame in chosen:
            for _ in range(8):
                sentence = writer.fill(frame)
                if sentence not in seen:
                    seen.add(sentence)
                    sentences.append(sentence)
                    break
        first, second = rng.randint(2, 4), rng.randint(6, 8)
        blocks = [sentences[:first], sentences[first:second], sentences[second:]]
        text = "\n\n".join(" ".join(b) for b in blocks if b)
        rows.append({"id": f"generated-{i + 1:04d}", "text": text})
    return rows


# ----------------------------------------------------------------- web pages


@dataclass
class Article:
    """A hand-written text with its title."""

    title: str
    text: str


def read_articles(pattern: str) -> list[Article]:
    """Read the texts of all files of a pattern, in order of name."""
    articles: list[Article] = []
    for path in sorted(SOURCE.glob(pattern)):
        for chunk in re.split(r"^# ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            title, _, text = chunk.partition("\n")
            articles.append(Article(title.strip(), text.strip()))
    return articles


def render(article: Article, template: str, lang: str, related: list[Article]) -> str:
    """Wrap an article as a complete page."""
    body = "\n".join(f"<p>{html.escape(p, quote=False)}</p>" for p in article.text.split("\n\n"))
    links = "\n".join(
        f'<li><a href="/{n}.html">{html.escape(r.title)}</a></li>' for n, r in enumerate(related)
    )
    values = {"LANG": lang, "TITLE": html.escape(article.title), "BODY": body, "LINKS": links}
    return re.sub(r"@(LANG|TITLE|BODY|LINKS)@", lambda m: values[m.group(1)], template)


EDITS = [("lakin", "amma"), ("deyir", "söyləyir"), ("yalnız", "təkcə"), ("çünki", "ona görə ki,")]


def near_duplicate(article: Article) -> Article:
    """Return the article with a few words changed and its last sentence dropped."""
    text = article.text
    for old, new in EDITS:
        text = re.sub(rf"\b{old}\b", new, text, count=1)
    text = text[: text.rstrip(".»").rfind(". ") + 1]
    return Article(article.title + " – xəbər lenti", text)


def record(kind: str, number_: int, block: bytes, uri: str = "") -> bytes:
    """Return one WARC record as its own gzip member."""
    when = FIRST_DATE + timedelta(seconds=37 * (number_ // 2))
    ident = uuid.uuid5(uuid.NAMESPACE_URL, f"anadil-builtin-{number_}")
    content = "application/warc-fields"
    if kind != "warcinfo":
        content = f"application/http; msgtype={kind}"
    head = ["WARC/1.0", f"WARC-Type: {kind}", f"WARC-Record-ID: <urn:uuid:{ident}>"]
    head.append(f"WARC-Date: {when:%Y-%m-%dT%H:%M:%SZ}")
    if uri:
        head.append(f"WARC-Target-URI: {uri}")
    head += [f"Content-Type: {content}", f"Content-Length: {len(block)}"]
    data = "\r\n".join(head).encode() + b"\r\n\r\n" + block + b"\r\n\r\n"
    return gzip.compress(data, 9, mtime=0)


def build_warc(articles: list[Article]) -> bytes:
    """Build the archive of Azerbaijani and foreign pages."""
    parts = (SOURCE / "templates.html").read_text(encoding="utf-8")
    templates = [t.strip() + "\n" for t in parts.split("<!-- next -->")]
    navigation, templates = templates[-1], templates[:-1]
    english, turkish = read_articles("pages_en.txt"), read_articles("pages_tr.txt")
    pages: list[tuple[str, str]] = []
    for i, article in enumerate(articles):
        related = [articles[(i + k) % len(articles)] for k in (3, 7, 11)]
        page = render(article, templates[i % len(templates)], "az", related)
        pages.append((f"https://xeber{i % 4 + 1}.example.az/oxu/{i + 101}.html", page))
    for i in range(6):
        page = render(near_duplicate(articles[i * 5]), templates[i - 3], "az", articles[:2])
        pages.append((f"https://lent.example.com/az/{i + 1}", page))
    for i, article in enumerate(english):
        lang = "az" if i < 2 else "en"
        page = render(article, templates[i % len(templates)], lang, english[:3])
        pages.append((f"https://news.example.com/en/{i + 1}", page))
    for i, article in enumerate(turkish):
        page = render(article, templates[i % len(templates)], "tr", turkish[:3])
        pages.append((f"https://haber.example.com/tr/{i + 1}", page))
    empty = render(Article("Bölmələr", ""), navigation, "az", articles[:8])
    pages.append(("https://xeber1.example.az/", empty))
    random.Random("anadil-az-pages").shuffle(pages)
    html_type = "text/html; charset=UTF-8"
    answers = [(uri, "200 OK", html_type, page.encode("utf-8")) for uri, page in pages]
    image = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01"
    missing = render(Article("Səhifə tapılmadı", "Axtardığınız səhifə yoxdur."), navigation, "az", [])
    answers.insert(9, ("https://xeber2.example.az/loqo.png", "200 OK", "image/png", image))
    gone = ("https://xeber3.example.az/yox", "404 Not Found", html_type, missing.encode("utf-8"))
    answers.insert(21, gone)
    info = b"software: anadil make_builtin_data\r\nformat: WARC File Format 1.0\r\n"
    out = [record("warcinfo", 0, info)]
    for i, (uri, status, mime, payload) in enumerate(answers):
        host, _, path = uri.removeprefix("https://").partition("/")
        ask = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: anadil-demo\r\n\r\n"
        head = f"HTTP/1.1 {status}\r\nContent-Type: {mime}\r\nContent-Length: {len(payload)}\r\n\r\n"
        out.append(record("request", 2 * i + 2, ask.encode(), uri))
        out.append(record("response", 2 * i + 3, head.encode() + payload, uri))
    return b"".join(out)


# ---------------------------------------------------------------------- main


def jsonl(rows: list[dict[str, str]]) -> bytes:
    """Encode rows as JSON lines."""
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows).encode("utf-8")


def build() -> dict[str, bytes]:
    """Return every file that this script writes."""
    articles = read_articles("prose_*.txt")
    prose, wrapped = articles[:-PAGE_ARTICLES], articles[-PAGE_ARTICLES:]
    rows = [{"id": f"prose-{i + 1:03d}", "text": a.text} for i, a in enumerate(prose)]
    return {
        "prose.jsonl": jsonl(rows),
        "generated.jsonl": jsonl(generate()),
        "pages.warc.gz": build_warc(wrapped),
    }


def same(name: str, old: bytes, new: bytes) -> bool:
    """Compare two versions; gzip members by content, as zlib builds differ."""
    if not name.endswith(".gz"):
        return old == new
    try:
        return gzip.decompress(old) == gzip.decompress(new)
    except (OSError, EOFError):
        return False


def main() -> int:
    """Write or check the files."""
    parser = argparse.ArgumentParser(description="write the built-in Azerbaijani data")
    parser.add_argument("--check", action="store_true", help="only compare, exit 1 on a difference")
    check: bool = parser.parse_args().check
    bad = 0
    for name, data in build().items():
        path = TARGET / name
        if check:
            if not path.exists() or not same(name, path.read_bytes(), data):
                print(f"{path.relative_to(ROOT)} differs: run scripts/make_builtin_data.py")
                bad = 1
        else:
            TARGET.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"{path.relative_to(ROOT)}: {len(data)} bytes")
    return bad


if __name__ == "__main__":
    sys.exit(main())
