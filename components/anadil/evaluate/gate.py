"""The quality gate, which decides which of the candidates may be released.

A check's name begins with the candidate that it decides about: `adapted.*` for a model, `merged.*` for what was merged of
it, `finetuned.*` for an adapter. `recipe/gate.py` has the names and the limits. Each candidate is judged for its own use:
the adapted model by the text that it continues, the finetuned one by its answers, the merged one by both if it answers.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anadil.core.candidates import BY_NAME, CANDIDATES, before_finetuning
from anadil.core.stage import ANSWERS
from anadil.evaluate.bootstrap import Difference, paired_difference
from anadil.evaluate.candidate import Material, ModelScores
from anadil.evaluate.generate import is_of_use
from anadil.evaluate.heldout import Contamination, Heldout
from anadil.evaluate.measures import check_values
from anadil.evaluate.models import EncodedDocuments
from anadil.recipe.gate import RUNNING_TEXT, Gate, GateMode, check_of
from anadil.text.metrics import SURE_DOCUMENTS, share_interval

log = logging.getLogger(__name__)

MIN_RETAINED = 2
"""Fewest documents of a retained text that decide anything: one has no interval. A small source holds out no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """One condition: `value <= limit`, or `value >= limit`."""

    name: str
    value: float | None
    """None where it was not measured although the recipe enforces it."""
    limit: float
    passed: bool
    enforced: bool
    """The candidate's verdict depends on it."""
    at_least: bool = False
    """The limit is a minimum; else a maximum."""
    interval: tuple[float, float] | None = None
    """95 %, of differences over documents, of shares over texts."""
    unsure: bool = False
    """Too few documents: the interval is too narrow."""
    num: int | None = None
    """Texts, documents or answers that the interval is of."""
    undecided: bool = False
    """The limit lies inside the interval; then the check did not pass."""

    @property
    def failure(self) -> str:
        """Reason of the failure, for log and messages."""
        limit = f"the limit is {'at least ' if self.at_least else ''}{self.limit:.4g}"
        if self.value is None:
            return f"{self.name} was not measured, {limit}"
        if self.undecided and self.interval:
            low, high = self.interval
            return (
                f"{self.name} is undecided: {self.num} texts, interval {low:.4g} to {high:.4g}, "
                f"limit {self.limit:.4g}; more texts needed"
            )
        around = f" [{self.interval[0]:.4g}, {self.interval[1]:.4g}]" if self.interval else ""
        return f"{self.name} is {self.value:.4g}{around}, {limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The gate's verdict on one artifact, and the use that it is judged for."""

    candidate: str
    use: str
    passed: bool
    failed: tuple[str, ...]
    """Names of enforced checks that did not hold, undecided ones among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    """Verdicts and conditions of all candidates."""

    passed: bool
    """Some candidate may be released."""
    released: str | None
    """The last candidate that passed: the finetuned model, else the merged one, else the adapted one; None if none did."""
    verdicts: dict[str, Verdict]
    """By kind of artifact: `model`, `merged`, `adapter`."""
    checks: tuple[GateCheck, ...]
    unmeasured: tuple[str, ...]
    """Checks for which there was nothing to measure, such as answers where no chats are held out."""


def apply_gate(
    gate: Gate, tables: Mapping[str, Mapping[str, Any]], differences: Mapping[str, Difference],
    contamination: Contamination, mask_audit: Mapping[str, Any] | None = None,
    answering: Collection[str] = ("finetuned",), of_champion: Collection[str] = (),
) -> GateVerdict:  # fmt: skip
    """Judge the candidates that were measured, each for its own use.

    A check whose limit lies inside its interval decides nothing, so its candidate is not released.
    Where no answers were measured, running text decides about the finetuned model. Candidates in `of_champion`, which a
    retraining took as they are, are judged, and there is nothing to release. Those in `answering` have a chat template.
    """
    answers_measured = f"finetuned - {before_finetuning(tables)}, answers" in differences
    judge = _Judge(
        gate=gate, tables=tables, differences=differences, answers_measured=answers_measured, answering=answering
    )  # fmt: skip
    verdicts = {}
    for each in CANDIDATES:
        if (name := each.name) in tables:
            judge.against_base(name)
            judge.texts(name)
            judge.documents(name, contamination)
            judge.measures(name)
            if name == "finetuned":
                judge.finetuned(mask_audit or {})
            failed = tuple(
                check.name
                for check in judge.checks
                if check.enforced and not check.passed and check.name.startswith(f"{name}.")
            )
            use = ANSWERS if name in answering else each.use
            verdicts[each.kind] = Verdict(candidate=name, use=use, passed=not failed, failed=failed)
    # In the order of `CANDIDATES`: the last one is the better one.
    good = [
        verdict.candidate
        for verdict in verdicts.values()
        if verdict.passed and verdict.candidate not in of_champion
    ]
    return GateVerdict(
        passed=bool(good),
        released=good[-1] if good else None,
        verdicts=verdicts,
        checks=tuple(judge.checks),
        unmeasured=tuple(judge.unmeasured),
    )


def log_verdict(verdict: GateVerdict) -> None:
    """Log which checks failed and which model may be released."""
    for check in verdict.checks:
        if check.enforced and not check.passed:
            log.warning("gate: %s", check.failure)
    if unsure := [check.name for check in verdict.checks if check.unsure]:
        log.warning(
            "gate: unsure, of fewer than %d documents or answers: %s", SURE_DOCUMENTS, ", ".join(unsure)
        )
    use = "".join(
        f" for {each.use}" for each in verdict.verdicts.values() if each.candidate == verdict.released
    )
    log.info(
        "gate: %s", f"the {verdict.released} model may be released{use}" if verdict.passed else "not passed"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    gate: Gate
    tables: Mapping[str, Mapping[str, Any]]
    differences: Mapping[str, Difference]
    answers_measured: bool
    answering: Collection[str]
    checks: list[GateCheck] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)

    def against_base(self, name: str) -> None:
        """Check gains and losses against the base and the champion."""
        gate, figures, base = self.gate, self.tables[name], self.tables["base"]
        # The finetuned model's own lines are those of the comparison with the model before.
        to_base = "_to_base" if name == "finetuned" else ""
        self._add(f"{name}.fertility", figures["fertility"] / base["fertility"], gate.max_fertility_ratio)
        self._ratio(f"{name}.bits_per_byte{to_base}", name, "base", gate.max_bits_per_byte_ratio)
        if not to_base:
            self._below(f"{name}.bits_per_byte_significant", self.differences.get(f"{name} - base"), 0.0)
        self._retained(f"{name}.retained{to_base}", name, "base", gate.max_retained_ratio)
        self._ratio(f"{name}.bits_per_byte_to_champion", name, "champion", gate.max_champion_ratio)
        # Chats cost kept languages a little, also those of the first model that answers.
        is_fair = name != "finetuned" or "champion" in self.answering
        self._retained(
            f"{name}.retained_to_champion", name, "champion", gate.max_champion_retained_ratio,
            default=None if is_fair else "report",
        )  # fmt: skip

    def texts(self, name: str) -> None:
        """Check what a candidate writes."""
        table, gate = self.tables[name], self.gate
        answers = name in self.answering
        # Sampling hides loops.
        texts = [
            text
            for text in table["generations"]
            if is_of_use(text["kind"], answers=answers) and text["mode"] == "greedy"
        ]
        self._share(f"{name}.loops", [text["loop"] for text in texts], gate.max_loop_rate)
        language = table.get("output_language") or {}
        share, num = language.get("own"), language.get("num")
        self._add(
            f"{name}.output_language", share if num else None, gate.min_own_language_rate, at_least=True,
            interval=share_interval(share, num), num=num,
            # An answer holds whole sentences, and a model that answers in another language is of no use.
            default="enforce" if answers else None,
        )  # fmt: skip
        if answers:
            self._share(
                f"{name}.ended", [text["ended"] for text in texts], gate.min_ended_rate, at_least=True
            )
            empty = [not any(map(str.isalnum, text["text"])) for text in texts]
            self._share(f"{name}.empty_answers", empty, gate.max_empty_rate)

    def documents(self, name: str, contamination: Contamination) -> None:
        """Check that the held-out text is clean and large enough."""
        leaks, count = len(contamination.contaminated), contamination.num_documents
        self._add(f"{name}.contaminated_share", leaks / count, self.gate.max_contaminated_share)
        self._add(f"{name}.documents", count, self.gate.min_documents, at_least=True)

    def measures(self, name: str) -> None:
        """Check the measures beside bits per byte."""
        for check, measured in check_values(self.tables[name]):
            self._add(
                f"{name}.{check.name}", measured.value, getattr(self.gate, check.limit), at_least=check.at_least,
                interval=measured.interval, num=measured.num,
            )  # fmt: skip

    def finetuned(self, mask_audit: Mapping[str, Any]) -> None:
        """Check finetuning against the model before it and the champion's answers."""
        gate, before = self.gate, before_finetuning(self.tables)
        self._ratio("finetuned.bits_per_byte", "finetuned", before, gate.max_finetuned_bits_per_byte_ratio)
        self._retained("finetuned.retained", "finetuned", before, gate.max_finetuned_retained_ratio)
        for check, other in (("answers", before), ("answers_to_champion", "champion")):
            difference = self.differences.get(f"finetuned - {other}, answers")
            self._below(
                f"finetuned.{check}", difference, gate.max_answers_difference, or_equal=other == "champion"
            )
        self._add("finetuned.mask_audit", mask_audit.get("share_ending_in_eot"), 1.0, at_least=True)

    def _ratio(self, check: str, name: str, other: str, limit: float) -> None:
        """Check bits per byte over another candidate's, with the interval of their difference."""
        if other not in self.tables:
            self._add(check, None, limit)
            return
        bits, before = (self.tables[each]["bits_per_byte"] for each in (name, other))
        self._ratio_to(check, bits, before, self.differences.get(f"{name} - {other}"), limit)

    def _ratio_to(
        self, check: str, bits: float, before: float, difference: Difference | None, limit: float,
        default: GateMode | None = None,
    ) -> None:  # fmt: skip
        ends = (1 + difference.low / before, 1 + difference.high / before) if difference else None
        self._add(check, bits / before, limit, interval=ends, default=default, difference=difference)

    def _below(
        self, check: str, difference: Difference | None, limit: float, *, or_equal: bool = False
    ) -> None:
        """Check that the whole interval of a difference is below a limit, or reaches it if `or_equal`."""
        if difference is None:
            self._add(check, None, limit)
            return
        below = difference.high <= limit if or_equal else difference.high < limit
        sure = difference.num_documents > 1 and below
        ends = (difference.low, difference.high)
        self._add(check, difference.value, limit, passed=sure, interval=ends, difference=difference)

    def _retained(
        self, check: str, name: str, other: str, limit: float, default: GateMode | None = None
    ) -> None:
        before = self.tables.get(other, {}).get("retained") or {}
        bits = {text: each for text, each in self.tables[name].get("retained", {}).items() if text in before}
        if not bits:
            self._add(check, None, limit)
        for text, each in bits.items():
            difference = self.differences.get(f"{name} - {other}, retained {text}")
            if difference and difference.num_documents < MIN_RETAINED:
                self._add(f"{check}.{text}", None, limit)
                continue
            self._ratio_to(f"{check}.{text}", each, before[text], difference, limit, default)

    def _share(self, check: str, marks: Sequence[bool], limit: float, *, at_least: bool = False) -> None:
        share = sum(marks) / len(marks) if marks else None
        ends = share_interval(share, len(marks))
        self._add(check, share, limit, at_least=at_least, interval=ends, num=len(marks))

    def _add(
        self, name: str, value: float | None, limit: float, *, at_least: bool = False,
        passed: bool | None = None, interval: tuple[float, float] | None = None, num: int | None = None,
        difference: Difference | None = None, default: GateMode | None = None,
    ) -> None:  # fmt: skip
        """Add a check; one that was not measured counts only where the recipe asks for it by name."""
        if value is None and self.gate.modes.get(name) != "enforce":
            self.unmeasured.append(name)
            return
        if passed is None:
            passed = value is not None and (value >= limit if at_least else value <= limit)
        undecided = interval is not None and interval[0] < limit < interval[1]
        stands_in = check_of(name) in RUNNING_TEXT and not self.answers_measured
        enforced = self.gate.is_enforced(name, default="enforce" if stands_in else default)
        self.checks.append(
            GateCheck(
                name=name, value=value, limit=limit, passed=passed and not undecided, enforced=enforced,
                at_least=at_least, interval=interval, unsure=difference is not None and difference.unsure,
                num=difference.num_documents if difference else num, undecided=undecided,
            )
        )  # fmt: skip


MADE = ("base", *BY_NAME)
PAIRS = (
    *((name, earlier) for place, name in enumerate(MADE) for earlier in MADE[:place]),
    *((name, "champion") for name in BY_NAME),
)
"""Candidates that are compared: the second is taken from the first."""


def differences_of(
    results: Mapping[str, ModelScores], material: Material, contamination: Contamination, seed: int
) -> dict[str, Difference]:
    """Compare pairs in bits per byte: held-out text, also without contaminated, retained languages, unseen answers."""
    encoded, retained, questions = material.heldout, material.retained, material.questions
    languages = np.array([document.lang for document in retained.documents])
    contaminated = set(contamination.contaminated)
    clean = np.array([document.id not in contaminated for document in encoded.documents])
    texts: list[tuple[str, str, NDArray[np.int64], NDArray[np.bool_]]] = [
        ("", "nats", encoded.num_bytes, np.ones(len(clean), np.bool_)),
        (", uncontaminated", "nats", encoded.num_bytes, clean & ~clean.all()),
        *(
            (f", retained {each}", "retained", retained.num_bytes, languages == each)
            for each in dict.fromkeys(languages.tolist())
        ),
        (", answers", "answers", questions.num_bytes, ~questions.is_seen),
    ]
    return {
        f"{name} - {other}{label}": paired_difference(
            getattr(results[name], key)[mask], getattr(results[other], key)[mask], sizes[mask], seed
        )
        for name, other in PAIRS
        if {name, other} <= results.keys()
        for label, key, sizes, mask in texts
        if mask.any()
    }


def scores_table(
    heldout: Heldout, material: Material, results: Mapping[str, ModelScores],
    differences: Mapping[str, Difference], contamination: Contamination, verdict: GateVerdict,
    tasks: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return all of `scores.json`; `tasks` are the results of the stage of that name."""
    encoded = material.heldout
    return {
        "candidates": {name: result.table for name, result in results.items()},
        **{name: facts for name, each in material.measures.items() if (facts := each.facts())},
        "differences": {
            name: asdict(one) | {"significant": one.significant, "unsure": one.unsure}
            for name, one in differences.items()
        },
        "contamination": asdict(contamination)
        | {"share": len(contamination.contaminated) / contamination.num_documents},
        "gate": asdict(verdict),
        "tasks": tasks,
        "heldout": {
            "source": heldout.source, "files": heldout.files, "sha256": heldout.sha256,
            "num_documents": len(heldout.documents), "empty": heldout.empty, "repeated": heldout.repeated,
            "altered": encoded.altered,
        },
        "documents": _by_document(encoded, {name: result.nats for name, result in results.items()}),
        "retained": {
            "altered": material.retained.altered,
            "documents": _by_document(
                material.retained, {name: result.retained for name, result in results.items()}
            ),
        },
        "questions": {
            "source": "files" if material.questions.files else "adapter",
            "files": material.questions.files,
            "listed": [
                {
                    "id": question.chat.id,
                    "source": question.chat.source,
                    "seen": question.seen,
                    "num_bytes": question.num_bytes,
                    "nats": {name: float(result.answers[index]) for name, result in results.items()},
                }
                for index, question in enumerate(material.questions.listed)
            ],
        },
    }  # fmt: skip


def _by_document(encoded: EncodedDocuments, nats: Mapping[str, NDArray[np.float64]]) -> list[dict[str, Any]]:
    return [
        {
            "id": document.id,
            "lang": document.lang,
            "num_bytes": len(document.text.encode()),
            "nats": {name: float(each[index]) for name, each in nats.items()},
        }
        for index, document in enumerate(encoded.documents)
    ]


def log_scores(
    verdict: GateVerdict,
    results: Mapping[str, ModelScores],
    contamination: Contamination,
    differences: Mapping[str, Difference],
) -> None:
    """Log what was measured, the verdict last."""
    before = before_finetuning(results)
    for name in (
        "adapted - base", "merged - adapted", f"finetuned - {before}", f"finetuned - {before}, answers",
    ):  # fmt: skip
        if difference := differences.get(name):
            log.info(
                "bits per byte, %s: %+.4f [%+.4f, %+.4f] over %d",
                name, difference.value, difference.low, difference.high, difference.num_documents,
            )  # fmt: skip
    tables = {name: result.table["retained"] for name, result in results.items()}
    for language in next(iter(tables.values())):
        figures = ", ".join(f"{name} {table[language]:.4f}" for name, table in tables.items())
        log.info("bits per byte on the retained text %s: %s", language, figures)
    if leaks := contamination.contaminated:
        log.warning(
            "held-out: %d of %d documents are also in the training part (%d as a whole): %s%s",
            len(leaks), contamination.num_documents, len(contamination.exact),
            ", ".join(leaks[:5]), ", ..." if len(leaks) > 5 else "",
        )  # fmt: skip
    log_verdict(verdict)
