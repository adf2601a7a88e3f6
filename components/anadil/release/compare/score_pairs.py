"""Two runs' figures side by side: what can be compared, by how much they differ, and how sure that is.

Bits per byte can be compared on the same text only, whatever the tokenizers; then both runs' losses of each
document are paired (`evaluate.bootstrap`). A figure whose conditions differ stands there with the reason.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal

from anadil.core.errors import PreflightError
from anadil.core.format import number
from anadil.core.install import install
from anadil.release.compare.run_facts import RunFacts, records
from anadil.report.read import Json, field, table_of
from anadil.report.verdict import candidates_of
from anadil.text.metrics import SURE_DOCUMENTS, share_interval

CONTENT_ID = re.compile(r"[0-9a-f]{16,64}")
"""An id that `clean` or `evaluate` made of the text; one that a user gave may stand for another text."""
SEED = 0
LOWER, HIGHER = -1, 1
Text = Literal["same", "partly the same", "different", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePair:
    """One figure of a candidate in both runs."""

    candidate: str
    measure: str
    """Path in the candidate's table of `scores.json`."""
    name: str
    """Label for people."""
    a: float | None
    b: float | None
    share: bool = False
    """A share, printed as per cent."""
    wanted: int = LOWER
    """-1 where less is better, else 1."""
    a_interval: tuple[float, float] | None = None
    """95 %, of the run alone."""
    b_interval: tuple[float, float] | None = None
    low: float | None = None
    """Lower end of the 95 % interval of `difference`, over what both runs scored."""
    high: float | None = None
    num_documents: int | None = None
    """Documents or answers that both runs scored."""
    why_not: str = ""
    """Why the two are not to be compared; empty where they are."""

    @property
    def difference(self) -> float | None:
        """B minus A; None where they are not to be compared."""
        return None if self.why_not or self.a is None or self.b is None else self.b - self.a

    @property
    def clear(self) -> bool | None:
        """The interval excludes 0, or those of two shares do not overlap; None without intervals."""
        if self.share and self.a_interval and self.b_interval and self.difference is not None:
            return self.a_interval[1] < self.b_interval[0] or self.b_interval[1] < self.a_interval[0]
        if self.low is None or self.high is None or self.difference is None:
            return None
        return (self.num_documents or 0) > 1 and not self.low <= 0 <= self.high

    @property
    def unsure(self) -> bool:
        """Too few documents: the interval is too narrow."""
        return self.num_documents is not None and self.num_documents < SURE_DOCUMENTS

    @property
    def better(self) -> Literal["a", "b"] | None:
        """Which run's figure is the better one; None where nothing says it clearly."""
        moved = self.difference
        if not moved or self.clear is False:
            return None
        return "b" if moved * self.wanted > 0 else "a"


def text_of(a: RunFacts, b: RunFacts) -> Text:
    """Compare the held-out texts of both runs."""
    first, second = (field(each.scores, "heldout.sha256") for each in (a, b))
    if not first or not second:
        return "unknown"
    if first == second:
        return "same"
    return "partly the same" if len(_common(a, b)) > 1 else "different"


def score_pairs(a: RunFacts, b: RunFacts) -> list[ScorePair]:
    """Every figure that either run has, candidate by candidate."""
    both = {name: (table_of(candidates_of(a.scores).get(name)), table_of(candidates_of(b.scores).get(name)))
            for name in [*candidates_of(a.scores), *(set(candidates_of(b.scores)) - set(candidates_of(a.scores)))]}  # fmt: skip
    pairs: list[ScorePair] = []
    for name, tables in both.items():
        measured = [
            _text_pair(a, b, name, tables),
            *_figures(a, b, name, tables),
            _answer_pair(a, b, name, tables),
            *_shares(a, b, name, tables),
            *_retained(a, b, name, tables),
        ]
        pairs += [pair for pair in measured if pair and (pair.a is not None or pair.b is not None)]
    return pairs


def _text_pair(a: RunFacts, b: RunFacts, name: str, tables: tuple[Json, Json]) -> ScorePair:
    """Bits per byte of the documents that both scored."""
    first, second = (number(table.get("bits_per_byte")) for table in tables)
    ends = [_ends(table.get("bits_per_byte_interval")) for table in tables]
    pair = ScorePair(
        candidate=name, measure="bits_per_byte", name="bits per byte", a=first, b=second,
        a_interval=ends[0], b_interval=ends[1], why_not=_other_text(a, b),
    )  # fmt: skip
    rows = [] if pair.why_not else _nats(_common(a, b), name)
    if not rows:
        return pair
    return _paired(pair, rows, whole=text_of(a, b) == "same")


def _paired(pair: ScorePair, rows: list[tuple[float, float, int]], *, whole: bool) -> ScorePair:
    """The pair with the interval of its difference.

    Args:
        pair: Figures of each run.
        rows: Nats in A, nats in B and bytes of each document.
        whole: Whether the documents are all that each run scored; else the figures are those of the common ones.
    """
    try:
        import numpy as np

        from anadil.evaluate.bootstrap import paired_difference
    except ModuleNotFoundError as error:
        raise PreflightError(f"intervals need {error.name}; {install('evaluate')}") from None
    nats, sizes = np.array([row[:2] for row in rows]), np.array([row[2] for row in rows])
    # A fixed seed: the same two runs give the same interval each time.
    difference = paired_difference(nats[:, 1], nats[:, 0], sizes, SEED)
    bits = nats.sum(axis=0) / math.log(2) / sizes.sum()
    first, second = (pair.a, pair.b) if whole else (float(bits[0]), float(bits[1]))
    return ScorePair(
        candidate=pair.candidate, measure=pair.measure, name=pair.name, a=first, b=second,
        a_interval=pair.a_interval if whole else None, b_interval=pair.b_interval if whole else None,
        low=difference.low, high=difference.high, num_documents=difference.num_documents,
    )  # fmt: skip


def _common(a: RunFacts, b: RunFacts) -> list[tuple[Json, Json]]:
    """Documents that both runs scored."""
    first, second = (records(each.scores.get("documents")) for each in (a, b))
    if field(a.scores, "heldout.sha256") == field(b.scores, "heldout.sha256"):
        same = len(first) == len(second) and all(map(_is_same, first, second))
        return list(zip(first, second, strict=True)) if same else []
    # Only ids that are hashes of the text: an id that a user gave may name another text elsewhere.
    known = {str(each.get("id")): each for each in second if CONTENT_ID.fullmatch(str(each.get("id")))}
    pairs = [(each, known[str(each.get("id"))]) for each in first if str(each.get("id")) in known]
    return [pair for pair in pairs if _is_same(*pair)]


def _is_same(a: Json, b: Json) -> bool:
    return a.get("num_bytes") == b.get("num_bytes")


def _nats(pairs: list[tuple[Json, Json]], name: str) -> list[tuple[float, float, int]]:
    """Nats of a candidate in both runs and bytes, of each document that both have figures of."""
    rows = []
    for a, b in pairs:
        first, second = (number(field(each, f"nats.{name}")) for each in (a, b))
        size = number(a.get("num_bytes"))
        if first is not None and second is not None and size:
            rows.append((float(first), float(second), int(size)))
    return rows


def _other_text(a: RunFacts, b: RunFacts) -> str:
    text = text_of(a, b)
    if text == "unknown":
        return "a run has no scores that say which text they are of"
    return "" if text != "different" else "other held-out text"


def _answer_pair(a: RunFacts, b: RunFacts, name: str, tables: tuple[Json, Json]) -> ScorePair | None:
    """Bits per byte of the right answers to questions that neither run has trained on."""
    first, second = (number(field(table, "questions.bits_per_byte")) for table in tables)
    listed = [
        {
            (each.get("id"), each.get("source"), each.get("num_bytes")): each
            for each in records(field(run.scores, "questions.listed"))
            if each.get("seen") is not True
        }
        for run in (a, b)
    ]
    common = [(each, listed[1][key]) for key, each in listed[0].items() if key in listed[1]]
    rows = _nats(common, name)
    whole = len(common) == len(listed[0]) == len(listed[1])
    pair = ScorePair(
        candidate=name, measure="questions.bits_per_byte", name="unseen questions: answer, bits per byte", a=first, b=second,
        why_not="" if common else "no question in common that neither was trained on",
    )  # fmt: skip
    return _paired(pair, rows, whole=whole) if rows else pair


def _figures(a: RunFacts, b: RunFacts, name: str, tables: tuple[Json, Json]) -> list[ScorePair]:
    """Tokens per word and words in context: of the same text only, and in the same language's words."""
    why = _other_text(a, b) or ("only a part of the text is common" if text_of(a, b) != "same" else "")
    if a.language != b.language:
        why = why or "other language, which counts words otherwise"
    contexts = [
        a.recipe.get(key) != b.recipe.get(key) for key in ("evaluate.context", "pretrain.sequence_length")
    ]
    pairs = []
    for key, label, better in (
        ("fertility", "tokens per word", LOWER),
        ("words_in_context", "words in context", HIGHER),
    ):
        first, second = (number(table.get(key)) for table in tables)
        reason = why or ("other context" if key == "words_in_context" and any(contexts) else "")
        pairs.append(
            ScorePair(candidate=name, measure=key, name=label, a=first, b=second, wanted=better, why_not=reason)
        )  # fmt: skip
    return pairs


def _shares(a: RunFacts, b: RunFacts, name: str, tables: tuple[Json, Json]) -> list[ScorePair]:
    """Shares of the texts that a candidate wrote, where both runs gave it the same prompts."""
    measures = (
        ("repetition.greedy.loop_rate", "greedy texts that loop", LOWER, ("repetition.greedy.loop_rate", "repetition.greedy.samples")),
        ("output_language.own", "texts in the language", HIGHER, ("output_language.own", "output_language.num")),
        ("questions.exact", "unseen questions: answered word for word", HIGHER, ("questions.exact", "questions.num")),
    )  # fmt: skip
    same = _prompts(tables[0]) == _prompts(tables[1])
    longer = a.recipe.get("evaluate.max_new_tokens") != b.recipe.get("evaluate.max_new_tokens")
    why = "" if same else "other prompts"
    why = why or ("evaluate.max_new_tokens differs" if longer else "")
    if a.language != b.language:
        why = why or "other language"
    pairs = []
    for measure, label, better, paths in measures:
        (first, num), (second, other) = (tuple(field(table, path) for path in paths) for table in tables)
        shares = [number(each) for each in (first, second)]
        counts = [int(count) if (count := number(each)) else None for each in (num, other)]
        pairs.append(
            ScorePair(
                candidate=name, measure=measure, name=label, a=shares[0], b=shares[1], share=True, wanted=better,
                a_interval=share_interval(shares[0], counts[0]), b_interval=share_interval(shares[1], counts[1]),
                why_not=why,
            )
        )  # fmt: skip
    return pairs


def _prompts(table: Json) -> list[tuple[object, object]]:
    return [(each.get("kind"), each.get("prompt")) for each in records(table.get("generations"))]


def _retained(a: RunFacts, b: RunFacts, name: str, tables: tuple[Json, Json]) -> list[ScorePair]:
    """Bits per byte of languages that the base knows, where both runs scored the same files."""
    why = "" if _retained_files(a) == _retained_files(b) else "other files of evaluate.retained"
    first, second = (table_of(table.get("retained")) for table in tables)
    listed = [records(field(run.scores, "retained.documents")) for run in (a, b)]
    pairs = []
    for code in dict.fromkeys([*first, *second]):
        pair = ScorePair(
            candidate=name, measure=f"retained.{code}", name=f"{code} retained, bits per byte", a=number(first.get(code)),
            b=number(second.get(code)), why_not=why,
        )  # fmt: skip
        own = [[each for each in documents if each.get("lang") == code] for documents in listed]
        # A tokenizer may have altered a document in one run, which then left it out.
        same = len(own[0]) == len(own[1]) and all(map(_is_same, *own))
        rows = _nats(list(zip(*own, strict=True)), name) if same and not why else []
        pairs.append(_paired(pair, rows, whole=True) if rows else pair)
    return pairs


def _retained_files(run: RunFacts) -> list[str]:
    origin = run.manifests["scores"].origin if "scores" in run.manifests else {}
    return sorted(text for key, text in origin.items() if key.endswith(" of evaluate.retained"))


def _ends(value: object) -> tuple[float, float] | None:
    ends = [number(each) for each in value] if isinstance(value, list) else []
    return (float(ends[0]), float(ends[1])) if len(ends) == 2 and None not in ends else None  # type: ignore[arg-type]  # None was looked for
