"""The comparison of two runs: recipes, scores, curves, answers, time and cost, and its limits."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anadil.artifacts import local_directory, storage
from anadil.core.errors import RecipeError
from anadil.core.format import human_figure, number
from anadil.core.log import masked
from anadil.core.stages import FLOW
from anadil.release.compare.compared_runs import ComparedRuns, CostPair, Curve, Curves, RecipeChange
from anadil.release.compare.page import render_comparison, side_by_side
from anadil.release.compare.run_facts import WORDS, RunFacts, find_facts, records
from anadil.release.compare.score_pairs import ScorePair, Text, score_pairs, text_of
from anadil.release.compare.tables import notebook_html, terminal_lines
from anadil.release.runs import WORK
from anadil.report.cost_view import StageCost, stage_costs
from anadil.report.read import Json, field, series
from anadil.report.verdict import candidates_of, gate_verdict
from anadil.runtime.flow import Step
from anadil.text.metrics import SURE_DOCUMENTS

DECIDING = (
    ("adapted", "bits_per_byte", "held-out text"),
    ("merged", "bits_per_byte", "held-out text"),
    ("finetuned", "questions.bits_per_byte", "answers to unseen questions"),
)
"""Candidate, measure and text of the first sentences."""
PLACES = ("storage.", "tracking.", "cluster.", "report.")
"""Sections of a recipe that decide no result."""


class Comparison(ComparedRuns):
    """Result of `compare`; a notebook shows it, `save` writes its page."""

    __slots__ = ()

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
            "curves": [asdict(each) for each in self.curves],
            "answers": side_by_side(self.a, self.b),
            "costs": [asdict(each) for each in self.costs],
        }  # fmt: skip

    def page(self) -> str:
        """Render one self-contained HTML page."""
        return render_comparison(self)

    def save(self, path: str | Path) -> Path:
        """Write the page.

        Raises:
            RecipeError: A directory is there.
        """
        path = Path(path)
        if path.is_dir():
            raise RecipeError(f"{path}: is a directory; give the name of a file, such as {path}/compare.html")
        local_directory.check_directory(path.parent, "--out")
        storage.LocalStore().write(str(path), self.page().encode(errors="replace"))
        return path

    def __str__(self) -> str:
        return "\n".join(terminal_lines(self))

    def _repr_html_(self) -> str:
        return notebook_html(self, self.page())


def compare(a: str, b: str, *, work: str | Path | None = WORK, root: str | None = None) -> Comparison:
    """Compare two runs.

    Args:
        a: A work directory (its latest run), the URI of a report, scores, adapter or model, or a run's id or its beginning.
        b: The other one; differences are B minus A.
        work: Work directory whose runs have ids.
        root: Store whose runs have ids.

    Raises:
        DataError: There is no such run, or nothing of it is there.
        IntegrityError: A file of it differs from its manifest.
        RecipeError: A name begins the ids of several runs.

    Example:
        >>> anadil.compare("anadil-work", "s3://bucket/scores/0a1b").save("compare.html")  # doctest: +SKIP
    """
    first, second = (find_facts(name, work, root) for name in (a, b))
    text, pairs = text_of(first, second), tuple(score_pairs(first, second))
    tokenizers = [run.digests.get("tokenizer") for run in (first, second)]
    same = bool(tokenizers[0]) and tokenizers[0] == tokenizers[1]
    stages = (
        _pretraining(first, second, same_tokenizer=same),
        _finetuning(first, second, same_tokenizer=same),
    )
    curves = tuple(each for each in stages if each.lines or each.why_not)
    common = [word for word in WORDS if word in first.digests and word in second.digests and word != "report"]
    return Comparison(
        a=first,
        b=second,
        text=text,
        recipe=_changes(first.recipe, second.recipe),
        same={word: first.digests[word] == second.digests[word] for word in common},
        scores=pairs,
        curves=curves,
        costs=_costs(first, second),
        verdict=_verdict(pairs),
        notes=_notes(first, second, text, curves),
    )


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


def _curve(name: str, points: tuple[tuple[float, float], ...], *, validation: bool = False) -> Curve:
    label = f"{name.upper()}{' validation' if validation else ''}"
    return Curve(label=label, run=name, validation=validation, points=points)


def _pretraining(a: RunFacts, b: RunFacts, *, same_tokenizer: bool) -> Curves:
    """Training and validation in bits per byte: nats per token of different tokenizers have no common axis."""
    # Bytes per token of the held-out text turn one into the other; the training text has nearly the same.
    sizes = [number(field(candidates_of(run.scores).get("adapted", {}), "bytes_per_token")) for run in (a, b)]
    curves: list[Curve] = []
    for name, run, size in (("a", a, sizes[0]), ("b", b, sizes[1])):
        loss = series(run.training, "loss")
        if size and all(sizes):
            loss = tuple((step, nats / math.log(2) / size) for step, nats in loss)
            curves.append(_curve(name, loss))
            curves.append(_curve(name, series(run.training, "validation_bits_per_byte"), validation=True))
        else:
            curves.append(_curve(name, loss))
    drawn, unit, why = tuple(line for line in curves if line.points), "bits per byte", ""
    if not all(sizes):
        unit = "nats per token"
        if drawn and not same_tokenizer:
            why = "the tokenizers differ and a run has no scores that say how many bytes its tokens have"
    return Curves(stage="Continued pre-training", unit=unit, lines=() if why else drawn, why_not=why)


def _finetuning(a: RunFacts, b: RunFacts, *, same_tokenizer: bool) -> Curves:
    curves = [
        _curve(name, series(run.finetuning, key), validation=key.startswith("validation"))
        for name, run in (("a", a), ("b", b))
        for key in ("loss", "validation_loss")
    ]
    drawn, why = tuple(line for line in curves if line.points), ""
    if not same_tokenizer and {line.run for line in drawn} == {"a", "b"}:
        why = "the tokenizers differ, and nats per token of one are not those of the other"
    return Curves(stage="Finetuning", unit="nats per token", lines=() if why else drawn, why_not=why)


def _costs(a: RunFacts, b: RunFacts) -> tuple[CostPair, ...]:
    def costs_of(run: RunFacts) -> dict[str, StageCost]:
        summaries = {"model": run.training_summary, "adapter": run.finetuning_summary}
        return {each.name: each for each in stage_costs(run.manifests, summaries)}

    first, second = costs_of(a), costs_of(b)
    pairs = []
    steps = [Step.named(name) for name in dict.fromkeys([*first, *second])]
    for step in sorted(steps, key=lambda each: FLOW.index(each.stage)):
        one, other = first.get(step.name), second.get(step.name)
        manifests = [run.manifests.get(step.writes) for run in (a, b)]
        digests = [manifest.whole_digest if manifest else "" for manifest in manifests]
        pairs.append(
            CostPair(
                stage=step.name, a_seconds=one.seconds if one else None, b_seconds=other.seconds if other else None,
                a_dollars=one.dollars if one else None, b_dollars=other.dollars if other else None,
                shared=bool(one and other and digests[0] == digests[1]),
            )
        )  # fmt: skip
    return tuple(each for each in pairs if each.a_seconds is not None or each.b_seconds is not None)


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


def _notes(a: RunFacts, b: RunFacts, text: Text, curves: tuple[Curves, ...]) -> tuple[str, ...]:
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
    steps = [
        [run.recipe.get(f"pretrain.{key}") for key in ("batch_size", "sequence_length")] for run in (a, b)
    ]
    if steps[0] != steps[1] and curves:
        notes.append("A step of A and one of B hold different numbers of tokens.")
    notes += [f"{each.stage}: no common axis, because {each.why_not}." for each in curves if each.why_not]
    return tuple(notes)


def _missing(name: str, run: RunFacts) -> str:
    """Name the artifacts that a run lacks."""
    lacks = [word for word in ("model", "scores") if word not in run.manifests]
    why = f"; it is {run.run.state}" if run.run and run.run.state != "finished" else ""
    return f"{name} has no {' and no '.join(lacks)} here{why}." if lacks else ""


def _about(run: RunFacts) -> Json:
    listed = run.run.to_dict() if run.run else None
    artifacts = {word: {"uri": run.uris.get(word), "sha256": digest} for word, digest in run.digests.items()}
    return {"name": run.name, "label": run.label, "run": listed, "artifacts": artifacts}
