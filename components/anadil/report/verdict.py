"""The verdict on the release with its reasons, and warnings."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any

from anadil.core.candidates import BY_NAME, COLOURS, before_finetuning
from anadil.core.format import integer_if_whole, number
from anadil.core.measures import view_results
from anadil.core.stage import ANSWERS
from anadil.page.format import MINUS, clip, figure, percent, plain_value, ratio, setting, words_of
from anadil.page.values import Json, candidates_of, field, list_of, named_tables, series, table_of
from anadil.recipe.gate import BY_TEXT
from anadil.report.read import Facts, recipe_language
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
# Fall of the loss under which a stage taught nothing: batches differ by as much. Chosen by us.
NOTHING = 0.02
# The same for finetuning and "little": an adapter whose loss fell by 8 % answered no question of the demo.
LITTLE = 0.10
# Rise of the validation figure over its lowest from which on a stage overfits. Chosen by us.
TURNED = 0.02
MAX_END_STEPS = 10
VALIDATION = ("validation_loss", "validation_bits_per_byte")
"""Keys of a logged line: finetuning's in nats per token, pre-training's in bits per byte."""
PRETRAINING, FINETUNING = "Continued pre-training", "Finetuning"
FORGETS = 0.05
"""Rise over the base's from which on page and card call a text forgotten. Chosen by us."""
OF_SOURCE = "_source"
"""Ends the name of a source's text where a text of `evaluate.retained` has the name of the source."""
MAX_TEXTS = 8
"""Most retained texts that page and card tell of in sentences."""


def verdict(facts: Facts) -> dict[str, Any]:
    """Build the head of the page, by the names of the template: the gate's verdict and warnings."""
    passed = field(facts.scores, "gate.passed")
    return {
        "text": gate_verdict(facts.scores),
        "passed": passed if isinstance(passed, bool) else None,
        "warnings": _warnings(facts),
    }


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
    # Without a gate there are no verdicts.
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
    differences = dict(named_tables(scores.get("differences")))
    name, other, text = gain_in_answers(scores), before(scores), "answers to unseen questions"
    if released != "finetuned" or name not in differences:
        name, other, text = f"{released} - base", "base", "held-out text"
    words = difference_words(differences.get(name, {}), f"the {other} model")
    return " ".join(filter(None, (head, f"On {text} it needs {words}." if words else "", *others)))


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
    return _with_interval(size, low, high, figure)


def _with_interval(words: str, low: float, high: float, say: Callable[[float], str]) -> str:
    if low * high <= 0:
        return f"{words}, and the 95 % interval holds 0 ({say(low)} to {say(high)})"
    near, far = sorted((abs(low), abs(high)))
    return f"{words} (95 % interval {say(near)} to {say(far)})"


def _deciding(scores: Json, name: str) -> list[Json]:
    return [check for check in checks_of(scores, name) if check.get("enforced", True)]


def _outcome(scores: Json, name: str) -> str:
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
    texts += chain.from_iterable(view_results("warnings", scores, subjects))
    for name in subjects:
        texts += _unfinished(candidates, name) if name in answering(scores) else []
    counts = [
        count for each in candidates.values() if (count := number(each.get("num_documents"))) is not None
    ]
    if (fewest := min(counts, default=SURE_DOCUMENTS)) < SURE_DOCUMENTS:
        texts.append(
            f"Unsure: only {figure(fewest)} documents were scored. Below {SURE_DOCUMENTS} an interval says little."
        )
    return tuple(texts)


def lost_checks(scores: Json, name: str) -> list[Json]:
    """Checks of a candidate that did not hold, whether they decide or are only shown."""
    return [check for check in checks_of(scores, name) if check.get("passed") is False]


def _unfinished(candidates: dict[str, Json], name: str) -> list[str]:
    texts = [table_of(one) for one in list_of(candidates.get(name, {}).get("generations"))]
    ends = [one.get("ended") for one in texts if one.get("kind") == "answer" and one.get("mode") == "greedy"]
    known = [end for end in ends if isinstance(end, bool)]
    cut = known.count(False) / len(known) if known else 0.0
    if cut < NOT_ENDED:
        return []
    return [f"Answers: {percent(cut)} of the {name} model's greedy answers do not end by themselves."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Findings about one stage's curve."""

    fall: float
    """Share of the first loss that is gone; below 0 where the loss rose. Means of a tenth of the steps, ten at most."""
    words: str
    """All of it as a sentence, without the stop."""
    warns: bool


def learnings(facts: Facts) -> dict[str, Learning]:
    """Stage -> findings about its curve; a stage without a loss curve is skipped."""
    stages = {
        PRETRAINING: _learning(facts.training, facts.training_summary, NOTHING),
        FINETUNING: _learning(facts.finetuning, facts.finetuning_summary, LITTLE),
    }
    return {stage: each for stage, each in stages.items() if each}


def _learning(lines: list[Json], summary: Json, little: float) -> Learning | None:
    losses = [value for _, value in series(lines, "loss")]
    if len(losses) < 2:
        return None
    size = max(1, min(MAX_END_STEPS, len(losses) // 10))
    first = float(number(summary.get("first_loss")) or fmean(losses[:size]))
    last = float(number(summary.get("last_loss")) or fmean(losses[-size:]))
    fall, turn = 1 - last / first if first > 0 else 0.0, _turn(lines)
    # Two digits, but a loss that is not 0 never fell by 100 %.
    percent = figure(min(fall * 100, 99.9), 3) if 0.99 < fall < 1 else figure(abs(fall) * 100, 2)
    moved = f"loss {'fell' if fall >= 0 else 'rose'} by {percent} %"
    taught = "nothing" if fall < NOTHING else "little" if fall < little else ""
    words = f"{moved}, from {figure(first)} to {figure(last)}"
    if taught:
        words = f"{moved}: this stage taught {taught}"
    if turn:
        step, rise = figure(integer_if_whole(turn[0])), f"{figure(turn[1] * 100, 2)} %"
        words += (
            f"; validation rose by {rise} after step {step}: this stage overfits"
            if turn[0]
            else f"; validation ended {rise} above the base's, which was the lowest: this stage made held-out text harder for the model"
        )
    return Learning(fall=fall, words=words, warns=bool(taught or turn))


def _turn(lines: list[Json]) -> tuple[float, float] | None:
    """Step of the lowest validation figure, 0 for the base, and the share by which it rose since; None if it did not."""
    points = next((curve for key in VALIDATION if (curve := series(lines, key))), ())
    if not points:
        return None
    step, lowest = min(points, key=lambda point: point[1])
    rise = points[-1][1] / lowest - 1 if lowest > 0 else 0.0
    # Training was to improve on the base, so over its figure any rise counts.
    return (step, rise) if rise > (TURNED if step else 0) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change of a candidate on one retained text."""

    text: str
    """Its name among `retained`: a language, a file or a source."""
    share: float
    """Bits per byte over the base's, less 1."""
    interval: tuple[float, float] | None
    """95 %, of the paired difference; None where the scores hold none, or only one document."""

    @property
    def is_forgotten(self) -> bool:
        """True if the rise is worth a warning."""
        return self.share > FORGETS

    @property
    def words(self) -> str:
        """The change as a clause, such as `45 % more bits per byte than the base`."""
        words = (
            f"{_percent(abs(self.share))} {'fewer' if self.share < 0 else 'more'} bits per byte than the base"
        )
        return _with_interval(words, *self.interval, _percent) if self.interval else words


def changes_of(scores: Json, name: str) -> tuple[Change, ...]:
    """Changes of a candidate on all retained texts, in the order of the scores."""
    base, figures = (table_of(field(scores, f"candidates.{each}.retained")) for each in ("base", name))
    differences = table_of(scores.get("differences"))
    changes = []
    for text, value in figures.items():
        before, share = number(base.get(text)), ratio(base.get(text), value)
        if before is None or share is None:
            continue
        paired = table_of(differences.get(f"{name} - base, retained {text}"))
        low, high = (number(paired.get(end)) for end in ("low", "high"))
        ends = None
        # One document has no interval: its ends are equal.
        if low is not None and high is not None and low != high:
            ends = float(low) / before, float(high) / before
        changes.append(Change(text=text, share=share - 1, interval=ends))
    return tuple(changes)


def forgotten(scores: Json, name: str) -> tuple[Change, ...]:
    """Changes of a candidate that are worth a warning, the worst first."""
    rises = sorted(changes_of(scores, name), key=lambda change: -change.share)
    return tuple(change for change in rises if change.is_forgotten)[:MAX_TEXTS]


def source_of_text(text: str, texts: Collection[str], sources: Collection[str]) -> str:
    """The source whose held-out part one of the retained texts is; empty where it is of `evaluate.retained`."""
    # A source that is called as a text of `evaluate.retained`, such as `en`, has another name there.
    if f"{text}{OF_SOURCE}" in texts:
        return ""
    return next((name for name in (text, text.removesuffix(OF_SOURCE)) if name in sources), "")


def name_of_text(text: str, texts: Collection[str], sources: Collection[str]) -> str:
    """Name of a retained text in a sentence: its language, or its source."""
    source = source_of_text(text, texts, sources)
    return f"the source {source}" if source else recipe_language({"language": text}).name


def _percent(share: float) -> str:
    # A tenth that is held as .0999... is one.
    return f"{MINUS if share < 0 else ''}{figure(round(abs(share) * 100, 6), 2)} %"
