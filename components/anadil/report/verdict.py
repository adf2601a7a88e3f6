"""The verdict on the release with its reasons, and warnings."""

from dataclasses import dataclass

from anadil.core.candidates import ANSWERS, BY_NAME, COLOURS, before_finetuning
from anadil.core.format import number
from anadil.recipe.gate import BY_TEXT
from anadil.report.format import clip, figure, percent, plain_value, setting, words_of
from anadil.report.learning import FINETUNING, learnings
from anadil.report.own_chat import own_chat_warnings
from anadil.report.read import Facts, Json, field, list_of, named_tables, table_of
from anadil.report.retained import forgotten
from anadil.text.metrics import SURE_DOCUMENTS

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
    "answers_to_champion": "bits per byte of answers, less the champion's",
}
"""Check of the gate -> name of its value; `check_words` has those that depend on the candidate."""
# Share of greedy answers that are cut at the limit, from which on a warning says so.
NOT_ENDED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    """The head of the page."""

    text: str
    passed: bool | None
    released: str
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
    """Figures of each candidate: base, adapted, merged, finetuned, champion, then any other."""
    tables = dict(named_tables(scores.get("candidates")))
    names = [name for name in COLOURS if name in tables]
    return {name: tables[name] for name in dict.fromkeys([*names, *tables])}


def released_name(scores: Json) -> str:
    """The candidate that the gate releases; empty for none."""
    released = field(scores, "gate.released")
    return clip(released, 40) if isinstance(released, str) and field(scores, "gate.passed") is True else ""


def subjects_of(scores: Json) -> tuple[str, ...]:
    """Candidates that warnings and large figures are about: the released one; where none is, all that were judged."""
    released = released_name(scores)
    return (released,) if released else tuple(name for name in BY_NAME if name in candidates_of(scores))


def answering(scores: Json) -> tuple[str, ...]:
    """Candidates that were judged as models that answer."""
    named = (name for name in BY_NAME if name in candidates_of(scores))
    return tuple(name for name in named if use_of(scores, name) == ANSWERS)


def use_of(scores: Json, name: str) -> str:
    """The use that a candidate was judged for; empty for what is no candidate."""
    if name not in BY_NAME:
        return ""
    use = field(scores, f"gate.verdicts.{BY_NAME[name].kind}.use")
    # Scores of an earlier release have no verdicts.
    return use if isinstance(use, str) else BY_NAME[name].use


def before(scores: Json) -> str:
    """The candidate that finetuning began with."""
    return before_finetuning(candidates_of(scores))


def gain_in_answers(scores: Json) -> str:
    """Name of the difference that tells whether finetuning made the answers better."""
    return f"finetuned - {before(scores)}, answers"


def gate_verdict(scores: Json) -> str:
    """Sentences about the model to release, or about each that did not pass."""
    if not isinstance(field(scores, "gate.passed"), bool):
        return "No quality gate was applied. Read the answers and figures below before you release a model."
    judged, released = [name for name in COLOURS if _deciding(scores, name)], released_name(scores)
    if not released:
        return " ".join(["Release none.", *(_outcome(scores, name) for name in reversed(judged))])
    count = len(_deciding(scores, released))
    checks = f": all {count} deciding checks hold" if count > 1 else ""
    head = f"Release the {released} model{_use(scores, released)}{checks}."
    others = [_outcome(scores, name) for name in judged if name != released]
    return " ".join(filter(None, (head, _gain(scores, released), *others)))


def checks_of(scores: Json, name: str = "") -> list[Json]:
    """The gate's checks, of one candidate or of all."""
    checks = [table_of(check) for check in list_of(field(scores, "gate.checks"))]
    return [check for check in checks if str(check.get("name")).startswith(f"{name}." if name else "")]


def check_words(check: Json, candidate: str = "", before: str = "adapted") -> str:
    """Name of a check's value, after its candidate unless that is the given one; finetuning began with `before`."""
    owner, _, rest = str(check.get("name") or "").partition(".")
    name, _, text = rest.partition(".")
    other = f"{before} model" if owner == "finetuned" and not name.endswith("_to_base") else "base"
    if name == "answers":
        words = f"bits per byte of answers, less the {other}'s"
    elif name == "bits_per_byte":
        words = f"bits per byte over the {other}'s"
    elif name in BY_TEXT:
        other = "champion" if name.endswith("_to_champion") else other
        words = f"bits per byte on {clip(text, 40)} over the {other}'s"
    else:
        words = CHECKS.get(name, words_of(clip(f"{name} {text}".strip(), 80)))
    return words if owner == candidate else f"{clip(owner, 40)}: {words}"


def limit_words(check: Json) -> str:
    """A check's limit; `at least` where the value must not be below it."""
    return f"{'at least ' if check.get('at_least') is True else ''}{setting(check.get('limit'))}"


def outcome_words(check: Json) -> str:
    """Clause with a check's value and limit."""
    ends = [figure(end) for end in list_of(check.get("interval")) if number(end) is not None]
    if check.get("undecided") is True:
        around, count = " to ".join(ends[:2]), figure(check.get("num"))
        return f"undecided: {count} texts, interval {around}, limit {limit_words(check)}; more texts needed"
    around = f" ({' to '.join(ends)})" if len(ends) == 2 else ""
    if len(ends) == 2 and ends[0] == ends[1] and check.get("num") == 1:
        # Without this a value below its limit would be refused for no reason that anybody can see.
        around = " (one text, which shows nothing)"
    value = check.get("value")
    measured = "was not measured" if number(value) is None else f"is {plain_value(value)}{around}"
    return f"{measured}, the limit {limit_words(check)}"


def difference_words(item: Json, what: str) -> str:
    """A difference in bits per byte with its interval, as a clause; empty where it is not known."""
    value, low, high = (number(item.get(key)) for key in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return ""
    size = f"{figure(abs(value))} bits per byte {'fewer' if value < 0 else 'more'} than {what}"
    if low == high:  # one document: nothing to draw from
        return f"{size}, without an interval"
    if low * high <= 0:
        return f"{size}, and the 95 % interval holds 0 ({figure(low)} to {figure(high)})"
    near, far = sorted((abs(low), abs(high)))
    return f"{size} (95 % interval {figure(near)} to {figure(far)})"


def _deciding(scores: Json, name: str) -> list[Json]:
    return [check for check in checks_of(scores, name) if check.get("enforced", True)]


def _outcome(scores: Json, name: str) -> str:
    """Sentence about a candidate's verdict and the checks that failed."""
    if all(check.get("passed") for check in _deciding(scores, name)):
        return f"The {name} model passed{_use(scores, name)}."
    lost = [check for check in _deciding(scores, name) if check.get("passed") is False]
    # Failed checks stand before undecided ones.
    lost.sort(key=lambda check: check.get("undecided") is True)
    failed = [f"{check_words(check, name, before(scores))} {outcome_words(check)}" for check in lost]
    more = f"; and {len(failed) - MAX_REASONS} more" if len(failed) > MAX_REASONS else ""
    word = "is undecided" if all(check.get("undecided") is True for check in lost) else "did not pass"
    return f"The {name} model {word}{_use(scores, name)}: {'; '.join(failed[:MAX_REASONS])}{more}."


def _use(scores: Json, name: str) -> str:
    return f" for {use}" if (use := use_of(scores, name)) else ""


def _gain(scores: Json, released: str) -> str:
    """Sentence about the gain of the released model; empty if unknown."""
    differences = dict(named_tables(scores.get("differences")))
    name, other, text = gain_in_answers(scores), before(scores), "answers to unseen questions"
    if released != "finetuned" or name not in differences:
        name, other, text = f"{released} - base", "base", "held-out text"
    words = difference_words(differences.get(name, {}), f"the {other} model")
    return f"On {text} it needs {words}." if words else ""


def _warnings(facts: Facts) -> tuple[str, ...]:
    """Warnings about the released model, or about all candidates if none is released."""
    scores, subjects, stages = facts.scores, subjects_of(facts.scores), learnings(facts)
    candidates = candidates_of(scores)
    texts = [
        f"{stage}: {each.words}."
        for stage, each in stages.items()
        if each.warns and (stage != FINETUNING or "finetuned" in subjects)
    ]
    if released_name(scores) == "finetuned" and FINETUNING in stages and stages[FINETUNING].warns:
        texts.append("The finetuned model still passes the gate. Read its answers before you release it.")
    answers = table_of(table_of(scores.get("differences")).get(gain_in_answers(scores)))
    high = number(answers.get("high"))
    if "finetuned" in subjects and high is not None and high >= 0:
        texts.append(
            f"Answers: the finetuned model needs {difference_words(answers, f'the {before(scores)} one')}."
        )
    for name in subjects:
        texts += [
            f"Not decisive: {check_words(check, name, before(scores))} {outcome_words(check)} ({name} model)."
            for check in lost_checks(scores, name)
            if not check.get("enforced", True)
        ]
        texts += [
            f"Forgetting: {clip(change.text, 40)} costs the {name} model {change.words}."
            for change in forgotten(scores, name)
        ]
    texts += own_chat_warnings(scores, subjects)
    for name in subjects:
        texts += _unfinished(candidates, name) if name in answering(scores) else []
    if (fewest := fewest_documents(candidates)) < SURE_DOCUMENTS:
        texts.append(
            f"Unsure: only {figure(fewest)} documents were scored. Below {SURE_DOCUMENTS} an interval says little."
        )
    return tuple(texts)


def lost_checks(scores: Json, name: str) -> list[Json]:
    """Checks of a candidate that did not hold, whether they decide or are only shown."""
    return [check for check in checks_of(scores, name) if check.get("passed") is False]


def fewest_documents(candidates: dict[str, Json]) -> float:
    """The fewest documents that a candidate was scored on; `SURE_DOCUMENTS` if unknown."""
    counts = [number(item.get("num_documents")) for item in candidates.values()]
    return min((count for count in counts if count is not None), default=SURE_DOCUMENTS)


def _unfinished(candidates: dict[str, Json], name: str) -> list[str]:
    texts = [table_of(one) for one in list_of(candidates.get(name, {}).get("generations"))]
    ends = [one.get("ended") for one in texts if one.get("kind") == "answer" and one.get("mode") == "greedy"]
    known = [end for end in ends if isinstance(end, bool)]
    cut = known.count(False) / len(known) if known else 0.0
    if cut < NOT_ENDED:
        return []
    return [f"Answers: {percent(cut)} of the {name} model's greedy answers do not end by themselves."]
