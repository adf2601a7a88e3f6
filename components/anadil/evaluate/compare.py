"""Comparison of the scores of two runs, with paired intervals and its limits."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from anadil.core.candidates import CANDIDATES
from anadil.core.errors import PreflightError
from anadil.core.format import human_figure, number
from anadil.core.install import install
from anadil.core.stage import ANSWERS
from anadil.page.compared import HIGHER, LOWER, Compared, ComparedRun, ScorePair
from anadil.page.values import Json, candidates_of, field, list_of, table_of
from anadil.text.metrics import SURE_DOCUMENTS, share_interval

FILE = "scores.json"
# An id that `clean` or `evaluate` made of the text; one that a user gave may stand for another text.
CONTENT_ID = re.compile(r"[0-9a-f]{16,64}")
SEED = 0
SHARES = (
    ("repetition.greedy.loop_rate", "repetition.greedy.samples", "greedy texts that loop", LOWER),
    ("output_language.own", "output_language.num", "texts in the language", HIGHER),
    ("questions.exact", "questions.num", "unseen questions: answered word for word", HIGHER),
)
"""Paths of a share and of its number of texts, label, better direction."""
Text = Literal["same", "partly the same", "different", "unknown"]
Tables = tuple[Json, Json]
DECIDING = tuple(
    (each.name, "questions.bits_per_byte", "answers to unseen questions")
    if each.use == ANSWERS
    else (each.name, "bits_per_byte", "held-out text")
    for each in CANDIDATES
)
"""Candidate, measure and text of the first sentences."""


def compared(a: ComparedRun, b: ComparedRun) -> Compared:
    """Figures of both runs, sentences about the deciding ones, and what does not compare."""
    text, pairs = text_of(a, b), score_pairs(a, b)
    return Compared(
        scores=pairs, verdict=_verdict(pairs), notes=_notes(a, b, text), more={"heldout_text": text}
    )


def _scores(run: ComparedRun) -> Json:
    return run.tables.get("scores", {})


def _records(value: object) -> list[Json]:
    """The tables of a list."""
    return [table_of(each) for each in list_of(value)]


def text_of(a: ComparedRun, b: ComparedRun) -> Text:
    """Compare the held-out texts of both runs."""
    first, second = (field(_scores(each), "heldout.sha256") for each in (a, b))
    if not first or not second:
        return "unknown"
    if first == second:
        return "same"
    return "partly the same" if len(_common(a, b)) > 1 else "different"


def score_pairs(a: ComparedRun, b: ComparedRun) -> list[ScorePair]:
    """Every figure that either run has, candidate by candidate."""
    candidates, pairs = [candidates_of(_scores(run)) for run in (a, b)], []
    text, common = text_of(a, b), _common(a, b)
    for name in dict.fromkeys([*candidates[0], *candidates[1]]):
        tables = table_of(candidates[0].get(name)), table_of(candidates[1].get(name))
        first, second = (number(table.get("bits_per_byte")) for table in tables)
        ends = [_ends(table.get("bits_per_byte_interval")) for table in tables]
        pair = ScorePair(
            candidate=name, measure="bits_per_byte", name="bits per byte", a=first, b=second,
            a_interval=ends[0], b_interval=ends[1], why_not=_other_text(text),
        )  # fmt: skip
        pairs += [
            pair if pair.why_not else _paired(pair, _nats(common, name), whole=text == "same"),
            *_figures(a, b, text, name, tables),
            _answer_pair(a, b, name, tables),
            *_shares(a, b, name, tables),
            *_retained(a, b, name, tables),
        ]
    return [pair for pair in pairs if pair.a is not None or pair.b is not None]


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


def _common(a: ComparedRun, b: ComparedRun) -> list[tuple[Json, Json]]:
    first, second = (_records(_scores(each).get("documents")) for each in (a, b))
    if field(_scores(a), "heldout.sha256") == field(_scores(b), "heldout.sha256"):
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


def _answer_pair(a: ComparedRun, b: ComparedRun, name: str, tables: Tables) -> ScorePair:
    """Bits per byte of the right answers to questions that neither run has trained on."""
    first, second = (number(field(table, "questions.bits_per_byte")) for table in tables)
    listed = [
        {
            (each.get("id"), each.get("source"), each.get("num_bytes")): each
            for each in _records(field(_scores(run), "questions.listed"))
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


def _figures(a: ComparedRun, b: ComparedRun, text: Text, name: str, tables: Tables) -> list[ScorePair]:
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


def _shares(a: ComparedRun, b: ComparedRun, name: str, tables: Tables) -> list[ScorePair]:
    """Shares of the texts that a candidate wrote, where both runs gave it the same prompts."""
    prompts = [
        [(each.get("kind"), each.get("prompt")) for each in _records(table.get("generations"))]
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


def _retained(a: ComparedRun, b: ComparedRun, name: str, tables: Tables) -> list[ScorePair]:
    """Bits per byte of languages that the base knows, where both runs scored the same files."""
    origins = [run.manifests["scores"].origin if "scores" in run.manifests else {} for run in (a, b)]
    files = [
        sorted(text for key, text in each.items() if key.endswith(" of evaluate.retained"))
        for each in origins
    ]
    why = "" if files[0] == files[1] else "other files of evaluate.retained"
    first, second = (table_of(table.get("retained")) for table in tables)
    listed = [_records(field(_scores(run), "retained.documents")) for run in (a, b)]
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


def _verdict(pairs: Sequence[ScorePair]) -> tuple[str, ...]:
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


def _notes(a: ComparedRun, b: ComparedRun, text: Text) -> tuple[str, ...]:
    notes = []
    if _scores(a) and _scores(b) and a.manifests["scores"].digest == b.manifests["scores"].digest:
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
    adapted = [candidates_of(_scores(run)).get("adapted") for run in (a, b)]
    windows = [[field(table, key) for key in ("context", "stride", "window_bos")] for table in adapted]
    if common and windows[0] != windows[1]:
        notes.append(
            "The models were scored in windows of different length or without BOS, which causes part of the difference."
        )
    seen = [
        {each.get("id"): each.get("seen") for each in _records(field(_scores(run), "questions.listed"))} for run in (a, b)
    ]  # fmt: skip
    if once := sum(seen[0][key] != seen[1][key] for key in seen[0].keys() & seen[1].keys()):
        notes.append(f"Only one run saw {once} of the questions in training; no interval counts them.")
    return tuple(notes)
