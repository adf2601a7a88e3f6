"""The comparison of two runs: recipes, scores with paired intervals, and its limits."""

import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from anadil.core.candidates import CANDIDATES
from anadil.core.errors import PreflightError
from anadil.core.format import DASH, human_figure, human_percent, number, one_line
from anadil.core.install import install
from anadil.core.log import masked
from anadil.core.stage import ANSWERS
from anadil.core.table import Table
from anadil.page.values import Json, field, list_of, table_of
from anadil.release.compare.run_facts import WORDS, RunFacts, find_facts, records
from anadil.release.runs import WORK
from anadil.report.verdict import candidates_of, gate_verdict
from anadil.text.metrics import SURE_DOCUMENTS, share_interval

# An id that `clean` or `evaluate` made of the text; one that a user gave may stand for another text.
CONTENT_ID = re.compile(r"[0-9a-f]{16,64}")
SEED = 0
LOWER, HIGHER = -1, 1
SHARES = (
    ("repetition.greedy.loop_rate", "repetition.greedy.samples", "greedy texts that loop", LOWER),
    ("output_language.own", "output_language.num", "texts in the language", HIGHER),
    ("questions.exact", "questions.num", "unseen questions: answered word for word", HIGHER),
)
"""Paths of a share and of its number of texts, label, better direction."""
Text = Literal["same", "partly the same", "different", "unknown"]
Tables = tuple[Json, Json]
WIDTH = 110
MAX_VALUE = 60
COLUMNS = ("candidate", "figure", "A", "B", "B - A", "95 % interval", "over", "better")
DECIDING = tuple(
    (each.name, "questions.bits_per_byte", "answers to unseen questions")
    if each.use == ANSWERS
    else (each.name, "bits_per_byte", "held-out text")
    for each in CANDIDATES
)
"""Candidate, measure and text of the first sentences."""
PLACES = ("storage.", "tracking.", "cluster.", "report.")
"""Sections of a recipe that decide no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePair:
    """One figure of a candidate in both runs."""

    candidate: str
    measure: str
    """Path in the candidate's table of `scores.json`."""
    name: str
    a: float | None
    b: float | None
    share: bool = False
    """A share, printed as per cent."""
    direction: int = LOWER
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
    """Reason why the two do not compare; empty where they do."""

    @property
    def difference(self) -> float | None:
        """B minus A; None where they do not compare."""
        return None if self.why_not or self.a is None or self.b is None else self.b - self.a

    @property
    def clear(self) -> bool | None:
        """True if the interval excludes 0, or those of two shares do not overlap; None without intervals."""
        if self.difference is None:
            return None
        if self.share and self.a_interval and self.b_interval:
            return self.a_interval[1] < self.b_interval[0] or self.b_interval[1] < self.a_interval[0]
        if self.low is None or self.high is None:
            return None
        return (self.num_documents or 0) > 1 and not self.low <= 0 <= self.high

    @property
    def unsure(self) -> bool:
        """True if there are so few documents that the interval is too narrow."""
        return self.num_documents is not None and self.num_documents < SURE_DOCUMENTS

    @property
    def better(self) -> Literal["a", "b"] | None:
        """The run with the clearly better figure; None for neither."""
        moved = self.difference
        if not moved or self.clear is False:
            return None
        return "b" if moved * self.direction > 0 else "a"


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
    candidates, pairs = [candidates_of(run.scores) for run in (a, b)], []
    text, common = text_of(a, b), _common(a, b)
    for name in dict.fromkeys([*candidates[0], *candidates[1]]):
        tables = table_of(candidates[0].get(name)), table_of(candidates[1].get(name))
        pairs += [
            _text_pair(text, common, name, tables),
            *_figures(a, b, text, name, tables),
            _answer_pair(a, b, name, tables),
            *_shares(a, b, name, tables),
            *_retained(a, b, name, tables),
        ]
    return [pair for pair in pairs if pair.a is not None or pair.b is not None]


def _text_pair(text: Text, common: list[tuple[Json, Json]], name: str, tables: Tables) -> ScorePair:
    """Bits per byte of the documents that both scored."""
    first, second = (number(table.get("bits_per_byte")) for table in tables)
    ends = [_ends(table.get("bits_per_byte_interval")) for table in tables]
    pair = ScorePair(
        candidate=name, measure="bits_per_byte", name="bits per byte", a=first, b=second,
        a_interval=ends[0], b_interval=ends[1], why_not=_other_text(text),
    )  # fmt: skip
    return pair if pair.why_not else _paired(pair, _nats(common, name), whole=text == "same")


def _paired(pair: ScorePair, rows: list[tuple[float, float, int]], *, whole: bool) -> ScorePair:
    """The pair with the interval of its difference, by (nats in A, nats in B, bytes) of each document."""
    # Unless the documents are all that each run scored, the figures become those of the common ones.
    if not rows:
        return pair
    try:
        import numpy as np

        from anadil.evaluate.bootstrap import paired_difference
    except ModuleNotFoundError as error:
        raise PreflightError(f"intervals need {error.name}; {install('evaluate')}") from None
    nats, sizes = np.array([row[:2] for row in rows]), np.array([row[2] for row in rows])
    # A fixed seed: the same two runs give the same interval each time.
    difference = paired_difference(nats[:, 1], nats[:, 0], sizes, SEED)
    if not whole:
        first, second = (float(bits) for bits in nats.sum(axis=0) / math.log(2) / sizes.sum())
        pair = replace(pair, a=first, b=second, a_interval=None, b_interval=None)
    return replace(pair, low=difference.low, high=difference.high, num_documents=difference.num_documents)


def _common(a: RunFacts, b: RunFacts) -> list[tuple[Json, Json]]:
    first, second = (records(each.scores.get("documents")) for each in (a, b))
    if field(a.scores, "heldout.sha256") == field(b.scores, "heldout.sha256"):
        return _same_documents(first, second)
    # Only ids that are hashes of the text: an id that a user gave may name another text elsewhere.
    known = {str(each.get("id")): each for each in second if CONTENT_ID.fullmatch(str(each.get("id")))}
    pairs = [(each, known[str(each.get("id"))]) for each in first if str(each.get("id")) in known]
    return [(one, other) for one, other in pairs if one.get("num_bytes") == other.get("num_bytes")]


def _same_documents(first: list[Json], second: list[Json]) -> list[tuple[Json, Json]]:
    """Documents of two lists in pairs; none if one list has others."""
    sizes = [[each.get("num_bytes") for each in documents] for documents in (first, second)]
    return list(zip(first, second, strict=True)) if sizes[0] == sizes[1] else []


def _nats(pairs: list[tuple[Json, Json]], name: str) -> list[tuple[float, float, int]]:
    """Nats of a candidate in both runs and bytes, of each document that both have figures of."""
    rows = []
    for a, b in pairs:
        first, second = (number(field(each, f"nats.{name}")) for each in (a, b))
        size = number(a.get("num_bytes"))
        if first is not None and second is not None and size:
            rows.append((float(first), float(second), int(size)))
    return rows


def _other_text(text: Text) -> str:
    if text == "unknown":
        return "a run has no scores that say which text they are of"
    return "other held-out text" if text == "different" else ""


def _answer_pair(a: RunFacts, b: RunFacts, name: str, tables: Tables) -> ScorePair:
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
    pair = ScorePair(
        candidate=name, measure="questions.bits_per_byte", name="unseen questions: answer, bits per byte", a=first, b=second,
        why_not="" if common else "no question in common that neither was trained on",
    )  # fmt: skip
    return _paired(pair, _nats(common, name), whole=len(common) == len(listed[0]) == len(listed[1]))


def _figures(a: RunFacts, b: RunFacts, text: Text, name: str, tables: Tables) -> list[ScorePair]:
    """Tokens per word and words in context: of the same text only, and in the same language's words."""
    why = _other_text(text) or ("only a part of the text is common" if text != "same" else "")
    if a.language != b.language:
        why = why or "other language, which counts words otherwise"
    windows = [
        [run.recipe.get(key) for key in ("evaluate.context", "pretrain.sequence_length")] for run in (a, b)
    ]
    context = why or ("other context" if windows[0] != windows[1] else "")
    return [
        ScorePair(
            candidate=name, measure=key, name=label, a=number(tables[0].get(key)), b=number(tables[1].get(key)),
            direction=direction, why_not=reason,
        )
        for key, label, direction, reason in (
            ("fertility", "tokens per word", LOWER, why),
            ("words_in_context", "words in context", HIGHER, context),
        )
    ]  # fmt: skip


def _shares(a: RunFacts, b: RunFacts, name: str, tables: Tables) -> list[ScorePair]:
    """Shares of the texts that a candidate wrote, where both runs gave it the same prompts."""
    prompts = [
        [(each.get("kind"), each.get("prompt")) for each in records(table.get("generations"))]
        for table in tables
    ]
    why = "" if prompts[0] == prompts[1] else "other prompts"
    if a.recipe.get("evaluate.max_new_tokens") != b.recipe.get("evaluate.max_new_tokens"):
        why = why or "evaluate.max_new_tokens differs"
    if a.language != b.language:
        why = why or "other language"
    pairs = []
    for measure, count, label, direction in SHARES:
        shares = [number(field(table, measure)) for table in tables]
        counts = [int(number(field(table, count)) or 0) for table in tables]
        ends = [share_interval(share, n) for share, n in zip(shares, counts, strict=True)]
        pairs.append(
            ScorePair(
                candidate=name, measure=measure, name=label, a=shares[0], b=shares[1], share=True, direction=direction,
                a_interval=ends[0], b_interval=ends[1], why_not=why,
            )
        )  # fmt: skip
    return pairs


def _retained(a: RunFacts, b: RunFacts, name: str, tables: Tables) -> list[ScorePair]:
    """Bits per byte of languages that the base knows, where both runs scored the same files."""
    origins = [run.manifests["scores"].origin if "scores" in run.manifests else {} for run in (a, b)]
    files = [
        sorted(text for key, text in each.items() if key.endswith(" of evaluate.retained"))
        for each in origins
    ]
    why = "" if files[0] == files[1] else "other files of evaluate.retained"
    first, second = (table_of(table.get("retained")) for table in tables)
    listed = [records(field(run.scores, "retained.documents")) for run in (a, b)]
    pairs = []
    for code in dict.fromkeys([*first, *second]):
        pair = ScorePair(
            candidate=name, measure=f"retained.{code}", name=f"{code} retained, bits per byte", a=number(first.get(code)),
            b=number(second.get(code)), why_not=why,
        )  # fmt: skip
        # A tokenizer may have altered a document in one run, which then skipped it.
        documents = [[each for each in all_ if each.get("lang") == code] for all_ in listed]
        rows = [] if why else _nats(_same_documents(*documents), name)
        pairs.append(_paired(pair, rows, whole=True))
    return pairs


def _ends(value: object) -> tuple[float, float] | None:
    ends = [float(end) for each in list_of(value) if (end := number(each)) is not None]
    return (ends[0], ends[1]) if len(ends) == 2 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChange:
    """A key whose value differs."""

    key: str
    a: object
    b: object
    decides: bool
    """A stage's result depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Differences between two runs."""

    a: RunFacts
    b: RunFacts
    text: Text
    recipe: tuple[RecipeChange, ...]
    same: dict[str, bool]
    scores: tuple[ScorePair, ...]
    verdict: tuple[str, ...]
    """Sentences: which run is better, and how certain that is."""
    notes: tuple[str, ...]
    """Limits of the comparison: what cannot be compared, and why."""

    def to_dict(self) -> dict[str, Any]:
        """Fields as JSON has them."""
        return {
            "a": _about(self.a),
            "b": _about(self.b),
            "heldout_text": self.text,
            "verdict": list(self.verdict),
            "notes": list(self.notes),
            "recipe": [asdict(each) for each in self.recipe],
            "same_artifacts": self.same,
            "scores": [
                asdict(each) | {"difference": each.difference, "clear": each.clear, "unsure": each.unsure, "better": each.better}
                for each in self.scores
            ],
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield the lines of a terminal."""
        yield f"A: {self.a.label}"
        yield f"B: {self.b.label}"
        for text in (*self.verdict, *self.notes):
            yield from ("", *textwrap.wrap(text, WIDTH))
        if self.recipe:
            yield from ("", "Recipe")
            for each in self.recipe:
                idle = "" if each.decides else " (decides no result)"
                yield f"{each.key}{idle}: {_value(each.a)} -> {_value(each.b)}"
        else:
            both = self.a.recipe and self.b.recipe
            yield from ("", "Recipe: no key differs." if both else "Recipe: not kept by a run.")
        rows = [_cells(pair) for pair in self.scores if pair.difference != 0]
        if rows:
            yield from ("", "Scores")
            yield from Table("Scores", COLUMNS, rows, words=(1, 7)).lines()
        if same := len(self.scores) - len(rows):
            yield f"{same} further figures are the same in both."


def compare(a: str, b: str, *, work: str | Path | None = WORK, root: str | None = None) -> Comparison:
    """Compare two runs.

    Args:
        a: A work directory (its latest run), the URI of a report, scores, adapter or model, or a run's id or its beginning.
        b: The other one; differences are B minus A.
        work: Work directory whose runs have ids.
        root: Store whose runs have ids.
    """
    first, second = (find_facts(name, work, root) for name in (a, b))
    text, pairs = text_of(first, second), tuple(score_pairs(first, second))
    common = [word for word in WORDS if word in first.digests and word in second.digests and word != "report"]
    return Comparison(
        a=first, b=second, text=text, recipe=_changes(first.recipe, second.recipe),
        same={word: first.digests[word] == second.digests[word] for word in common}, scores=pairs,
        verdict=_verdict(pairs), notes=_notes(first, second, text),
    )  # fmt: skip


def _changes(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[RecipeChange, ...]:
    """Keys that differ, those that decide a result first."""

    def shown(value: object) -> object:
        """A value without what only its owner may read."""
        text = json.dumps(value, ensure_ascii=False)
        return value if (safe := masked(text)) == text else json.loads(safe)

    changes = [
        RecipeChange(key=key, a=shown(a.get(key)), b=shown(b.get(key)), decides=not key.startswith(PLACES))
        for key in dict.fromkeys([*a, *b])
        if a and b and a.get(key) != b.get(key)
    ]
    return tuple(sorted(changes, key=lambda each: not each.decides))


def _verdict(pairs: tuple[ScorePair, ...]) -> tuple[str, ...]:
    """A sentence for each deciding figure that both runs have."""
    sentences = []
    for candidate, measure, subject in DECIDING:
        pair = next((each for each in pairs if (each.candidate, each.measure) == (candidate, measure)), None)
        if pair is None or pair.difference is None:
            continue
        word = "are the same" if pair.difference == 0 else "are not clearly apart"
        head = f"{pair.better.upper()} is better" if pair.better else f"A and B {word}"
        sentence = f"{head} on {subject} ({candidate} model): A {human_figure(pair.a)}, B {human_figure(pair.b)} bits per byte"
        if pair.low is not None and pair.high is not None:
            sentence += (
                f"; difference {pair.difference:+.4f}, 95 % interval {pair.low:+.4f} to {pair.high:+.4f}, paired "
                f"over {human_figure(pair.num_documents)}"
            )
        few = f" Fewer than {SURE_DOCUMENTS} make the interval too narrow."
        sentences.append(f"{sentence}.{few if pair.unsure and pair.difference else ''}")
    return tuple(sentences)


def _notes(a: RunFacts, b: RunFacts, text: Text) -> tuple[str, ...]:
    runs = (("A", a), ("B", b))
    notes = [f"{name}: {gate_verdict(run.scores)}" for name, run in runs if run.scores]
    notes += [note for name, run in runs if (note := _missing(name, run))]
    if a.scores and b.scores and a.manifests["scores"].digest == b.manifests["scores"].digest:
        notes.append("Both have the same scores: no difference can be seen.")
    if a.language != b.language and a.language and b.language:
        notes.append(
            f"The languages differ ({a.language} and {b.language}): each model is measured on its own text, so no "
            "figure shows which is better."
        )
    if text == "different":
        notes.append("The held-out texts differ: bits per byte compare on the same text only.")
    if text == "partly the same":
        notes.append("The held-out texts differ; bits per byte are those of the documents that both scored.")
    common = text in ("same", "partly the same")
    if common and a.digests.get("tokenizer") != b.digests.get("tokenizer"):
        notes.append("The tokenizers differ: bits per byte still compare, losses per token do not.")
    windows = [
        [field(candidates_of(run.scores).get("adapted"), key) for key in ("context", "stride", "window_bos")]
        for run in (a, b)
    ]
    if common and windows[0] != windows[1]:
        notes.append(
            "The models were scored in windows of different length or without BOS, which causes part of the difference."
        )
    seen = [
        {each.get("id"): each.get("seen") for each in records(field(run.scores, "questions.listed"))} for run in (a, b)
    ]  # fmt: skip
    if once := sum(seen[0][key] != seen[1][key] for key in seen[0].keys() & seen[1].keys()):
        notes.append(f"Only one run saw {once} of the questions in training; no interval counts them.")
    return tuple(notes)


def _missing(name: str, run: RunFacts) -> str:
    lacks = [word for word in ("model", "scores") if word not in run.manifests]
    why = f"; it is {run.run.state}" if run.run and run.run.state != "finished" else ""
    return f"{name} has no {' and no '.join(lacks)} here{why}." if lacks else ""


def _about(run: RunFacts) -> Json:
    listed = run.run.to_dict() if run.run else None
    artifacts = {word: {"uri": run.uris.get(word), "sha256": digest} for word, digest in run.digests.items()}
    return {"name": run.name, "label": run.label, "run": listed, "artifacts": artifacts}


def _value(value: object) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), MAX_VALUE)


def _cells(pair: ScorePair) -> tuple[str, ...]:
    """Cells under `COLUMNS`; the interval is that of the difference, or without one that of each run."""
    say = human_percent if pair.share else human_figure
    difference, interval, better = DASH, "", ""
    if pair.difference is not None:
        sign = "+" if pair.difference > 0 else ""
        difference = (
            f"{pair.difference * 100:+.3g} points" if pair.share else f"{sign}{human_figure(pair.difference)}"
        )
        better = "same" if pair.difference == 0 else "not clear"
    if pair.why_not:
        better = f"not comparable: {pair.why_not}"
    elif pair.low is not None and pair.high is not None:
        interval = "0" if pair.low == pair.high == 0 else f"{pair.low:+.4f} to {pair.high:+.4f}"
    elif pair.a_interval and pair.b_interval:
        a, b = (" to ".join(map(say, ends)) for ends in (pair.a_interval, pair.b_interval))
        interval = f"A {a}, B {b}"
    if pair.better:
        better = f"{pair.better.upper()}{', unsure' if pair.unsure else ''}"
    num = "" if pair.num_documents is None else human_figure(pair.num_documents)
    return (pair.candidate, pair.name, say(pair.a), say(pair.b), difference, interval, num, better)
