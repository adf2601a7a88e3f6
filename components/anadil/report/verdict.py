"""The verdict: which model to release and why, or why none, and warnings."""

from dataclasses import dataclass

from anadil.core.format import number
from anadil.recipe.gate import USES
from anadil.report.format import clip, figure, percent, plain_value, setting, words_of
from anadil.report.learning import finetuning_of, learnings
from anadil.report.read import Facts, Json, field, list_of, named_tables, table_of
from anadil.text.metrics import SURE_DOCUMENTS

COLOURS = {"base": 0, "adapted": 1, "finetuned": 2, "champion": 3}
CANDIDATES = tuple(COLOURS)
MAX_REASONS = 4
CHECKS = {
    "fertility": "tokens per word over the base's",
    "bits_per_byte_to_base": "bits per byte over the base's",
    "bits_per_byte_to_champion": "bits per byte over the champion's",
    "bits_per_byte_significant": "bits per byte gained over the base",
    "loops": "share of texts that loop",
    "output_language": "share of texts in the language",
    "ended": "share of answers that end",
    "empty_answers": "share of empty answers",
    "contaminated_share": "share of held-out documents that training has seen",
    "documents": "number of held-out documents",
    "mask_audit": "share of rows whose end is trained",
    "answers": "bits per byte of answers, less the adapted model's",
    "answers_to_champion": "bits per byte of answers, less the champion's",
}
"""Check of the gate -> what its value is; `_of_check` has those that depend on the candidate."""
FORGETS = 0.05
"""Rise of bits per byte on a language to be retained from which on a warning says so."""
NOT_ENDED = 0.5
"""Share of greedy answers that are cut at the limit, from which on a warning says so."""
ANSWERS = "finetuned - adapted, answers"
"""Name of the difference that tells whether finetuning made the answers better."""
GAINS = {"adapted": "adapted - base", "finetuned": ANSWERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    """The head of the page."""

    text: str
    passed: bool | None
    released: str
    """Name of the candidate; empty where none is released."""
    warnings: tuple[str, ...]


def verdict(facts: Facts) -> VerdictView:
    """Build the head of the page: the gate's verdict and warnings."""
    passed = field(facts.scores, "gate.passed")
    return VerdictView(
        text=gate_verdict(facts.scores),
        passed=passed if isinstance(passed, bool) else None,
        released=released_name(facts.scores),
        warnings=_warnings(facts),
    )


def candidates_of(scores: Json) -> dict[str, Json]:
    """Figures of each candidate: base, adapted, finetuned, champion, then any other."""
    tables = dict(named_tables(scores.get("candidates")))
    names = [name for name in CANDIDATES if name in tables]
    return {name: tables[name] for name in [*names, *(other for other in tables if other not in COLOURS)]}


def released_name(scores: Json) -> str:
    """The candidate that the gate releases; of older scores the last one that it judged. Empty: none."""
    if field(scores, "gate.passed") is not True:
        return ""
    released = field(scores, "gate.released")
    judged = _judged(scores)
    return clip(released, 40) if isinstance(released, str) else judged[-1] if judged else "adapted"


def subjects_of(scores: Json) -> tuple[str, ...]:
    """Candidates that warnings and large figures are about: the released one; where none is, all that were judged."""
    released = released_name(scores)
    known = [name for name in USES if name in candidates_of(scores)]
    return (released,) if released else tuple(known)


def gate_verdict(scores: Json) -> str:
    """Which model to release and why, or why none."""
    if not isinstance(field(scores, "gate.passed"), bool):
        return "No quality gate was applied. Read the answers and figures below before you release a model."
    judged = _judged(scores)
    released = released_name(scores)
    others = [name for name in judged if name != released]
    if released:
        own = len(_deciding(scores, released))
        checks = f": all {own} deciding checks hold" if own > 1 else ""
        rest = [_outcome(scores, name) for name in others]
        head = f"Release the {released} model{_use(released)}{checks}."
        return " ".join(filter(None, (head, _gain(scores, released), *rest)))
    return " ".join(["Release none.", *(_outcome(scores, name) for name in reversed(judged))])


def checks_of(scores: Json) -> list[Json]:
    """The gate's checks."""
    return [table_of(check) for check in list_of(field(scores, "gate.checks"))]


def check_words(check: Json, candidate: str = "") -> str:
    """Name of a check's value, after its candidate unless that is the given one."""
    owner, _, name = str(check.get("name") or "").partition(".")
    words = _of_check(owner, name)
    return words if owner == candidate else f"{clip(owner, 40)}: {words}"


def _of_check(owner: str, name: str) -> str:
    other = "adapted model" if owner == "finetuned" else "base"
    name, _, text = name.partition(".")
    if name == "bits_per_byte":
        return f"bits per byte over the {other}'s"
    if name in ("retained", "retained_to_base"):
        other = "base" if name.endswith("_to_base") else other
        return f"bits per byte on {clip(text, 40)} over the {other}'s"
    return CHECKS.get(name, words_of(clip(f"{name} {text}".strip(), 80)))


def limit_words(check: Json) -> str:
    """A check's limit; `at least` where the value must not be below it."""
    return f"{'at least ' if check.get('at_least') is True else ''}{setting(check.get('limit'))}"


def difference_words(item: Json, what: str) -> str:
    """A difference in bits per byte with its interval, as a clause; empty where it is not known."""
    value, low, high = (number(item.get(key)) for key in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return ""
    side = "fewer" if value < 0 else "more"
    ends = sorted((abs(low), abs(high))) if low * high > 0 else None
    size = f"{figure(abs(value))} bits per byte {side} than {what}"
    if low == high:  # one document: nothing to draw from
        return f"{size}, without an interval"
    if ends is None:
        return f"{size}, and the 95 % interval holds 0 ({figure(low)} to {figure(high)})"
    return f"{size} (95 % interval {figure(ends[0])} to {figure(ends[1])})"


def _judged(scores: Json) -> list[str]:
    """Candidates that a deciding check speaks of."""
    return [name for name in CANDIDATES if _deciding(scores, name)]


def _deciding(scores: Json, name: str) -> list[Json]:
    enforced = [check for check in checks_of(scores) if check.get("enforced", True)]
    return [check for check in enforced if str(check.get("name")).startswith(f"{name}.")]


def _outcome(scores: Json, name: str) -> str:
    """Sentence about a candidate's verdict and the checks that failed."""
    if all(check.get("passed") for check in _deciding(scores, name)):
        return f"The {name} model passed{_use(name)}."
    lost = [check for check in _deciding(scores, name) if check.get("passed") is False]
    # What failed stands before what is undecided.
    lost.sort(key=lambda check: check.get("undecided") is True)
    failed = [f"{check_words(check, name)} {outcome_words(check)}" for check in lost]
    more = f"; and {len(failed) - MAX_REASONS} more" if len(failed) > MAX_REASONS else ""
    word = "is undecided" if all(check.get("undecided") is True for check in lost) else "did not pass"
    return f"The {name} model {word}{_use(name)}: {'; '.join(failed[:MAX_REASONS])}{more}."


def _use(name: str) -> str:
    return f" for {USES[name]}" if name in USES else ""


def outcome_words(check: Json) -> str:
    """Clause with a check's value and limit."""
    if check.get("undecided") is True:
        low, high = (figure(number(end)) for end in list_of(check.get("interval"))[:2])
        count = figure(number(check.get("num")))
        return f"undecided: {count} texts, interval {low} to {high}, limit {limit_words(check)}; more texts needed"
    return f"{_measured(check)}, the limit {limit_words(check)}"


def _measured(check: Json) -> str:
    if number(check.get("value")) is None:
        return "was not measured"
    ends = [number(end) for end in list_of(check.get("interval"))]
    low_high = [figure(end) for end in ends if end is not None]
    around = f" ({' to '.join(low_high)})" if len(low_high) == 2 else ""
    return f"is {plain_value(check['value'])}{around}"


def _gain(scores: Json, released: str) -> str:
    """Sentence about the gain of the released model; empty if unknown."""
    differences = dict(named_tables(scores.get("differences")))
    name = GAINS.get(released, "")
    if name not in differences:
        name = "finetuned - base" if released == "finetuned" else name
    words = difference_words(
        differences.get(name, {}), f"the {'adapted' if name == ANSWERS else 'base'} model"
    )
    if not words:
        return ""
    subject = "Answers to questions it has not seen" if name == ANSWERS else "Held-out text"
    verb = "cost" if name == ANSWERS else "costs"
    return f"{subject} {verb} it {words}."


def _warnings(facts: Facts) -> tuple[str, ...]:
    """Warnings about the released model, or about all candidates if none is released."""
    candidates = candidates_of(facts.scores)
    subjects = subjects_of(facts.scores)
    stages = learnings(facts)
    finetuning = finetuning_of(stages)
    texts = [
        f"{each.stage}: {each.words}."
        for each in stages
        if each.warns and (each is not finetuning or "finetuned" in subjects)
    ]
    if released_name(facts.scores) == "finetuned" and finetuning and finetuning.warns:
        texts.append("The finetuned model still passes the gate. Read its answers before you release it.")
    answers = dict(named_tables(facts.scores.get("differences"))).get(ANSWERS, {})
    high = number(answers.get("high"))
    if "finetuned" in subjects and high is not None and high >= 0:
        texts.append(f"Answers: the finetuned model needs {difference_words(answers, 'the adapted one')}.")
    for name in subjects:
        texts += _costs(facts.scores, name)
        texts += [
            f"Forgetting: {clip(code, 40)} costs the {name} model {rise} more bits per byte than the base."
            for code, rise in forgotten(candidates, name)
        ]
    texts += _unfinished(candidates) if "finetuned" in subjects else []
    return (*texts, *_few(candidates))


def forgotten(candidates: dict[str, Json], name: str) -> list[tuple[str, str]]:
    """Retained texts on which a candidate is worse than the base by more than `FORGETS`, each with its rise."""
    base = table_of(candidates.get("base", {}).get("retained"))
    losses = []
    for code, value in table_of(candidates.get(name, {}).get("retained")).items():
        before, after = number(base.get(code)), number(value)
        if before and after is not None and after / before > 1 + FORGETS:
            losses.append((code, f"{figure((after / before - 1) * 100, 2)} %"))
    return losses[:MAX_REASONS]


def lost_checks(scores: Json, name: str) -> list[Json]:
    """Checks of a candidate that did not hold, whether they decide or are only shown."""
    own = [check for check in checks_of(scores) if str(check.get("name")).startswith(f"{name}.")]
    return [check for check in own if check.get("passed") is False]


def _costs(scores: Json, name: str) -> list[str]:
    """Checks of a candidate that did not hold and do not decide."""
    return [
        f"Shown only: of the {name} model, {check_words(check, name)} {outcome_words(check)}."
        for check in lost_checks(scores, name)
        if not check.get("enforced", True)
    ]


def _unfinished(candidates: dict[str, Json]) -> list[str]:
    made = [table_of(one) for one in list_of(candidates.get("finetuned", {}).get("generations"))]
    ends = [one.get("ended") for one in made if one.get("kind") == "answer" and one.get("mode") == "greedy"]
    known = [end for end in ends if isinstance(end, bool)]
    cut = known.count(False) / len(known) if known else 0.0
    if cut < NOT_ENDED:
        return []
    return [f"Answers: {percent(cut)} of the finetuned model's greedy answers do not end by themselves."]


def _few(candidates: dict[str, Json]) -> list[str]:
    counts = [number(item.get("num_documents")) for item in candidates.values()]
    fewest = min((count for count in counts if count is not None), default=SURE_DOCUMENTS)
    if fewest >= SURE_DOCUMENTS:
        return []
    return [
        f"Unsure: only {figure(fewest)} documents were scored. Below {SURE_DOCUMENTS} an interval says little."
    ]
