"""Two runs side by side: recipes, scores, curves, answers, time and cost, and what can be compared at all."""

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
from anadil.release.compare.answers import side_by_side
from anadil.release.compare.compared_runs import ComparedRuns, CostPair, Curve, Curves, RecipeChange
from anadil.release.compare.page import render_comparison
from anadil.release.compare.run_facts import WORDS, RunFacts, find_facts, records
from anadil.release.compare.score_pairs import ScorePair, Text, score_pairs, text_of
from anadil.release.compare.tables import notebook_html, terminal_lines
from anadil.release.runs import WORK
from anadil.report.cost_view import StageCost, stage_costs
from anadil.report.read import Json, field, series
from anadil.report.verdict import candidates_of, gate_verdict
from anadil.text.metrics import SURE_DOCUMENTS

DECIDING = (
    ("adapted", "bits_per_byte", "held-out text"),
    ("finetuned", "questions.bits_per_byte", "answers to unseen questions"),
)
"""Candidate, measure, and what it is read on: what the first sentences are about."""
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
        IntegrityError: A file of it is not what its manifest says.
        RecipeError: A name begins the ids of several runs.

    Example:
        >>> anadil.compare("anadil-work", "s3://bucket/scores/0a1b").save("compare.html")  # doctest: +SKIP
    """
    first, second = (find_facts(name, work, root) for name in (a, b))
    text = text_of(first, second)
    pairs = tuple(score_pairs(first, second))
    curves = _curves(first, second)
    return Comparison(
        a=first,
        b=second,
        text=text,
        recipe=_changes(first.recipe, second.recipe),
        same={
            word: first.digests[word] == second.digests[word]
            for word in WORDS
            if word in first.digests and word in second.digests and word != "report"
        },
        scores=pairs,
        curves=curves,
        costs=_costs(first, second),
        verdict=_verdict(pairs),
        notes=_notes(first, second, text, curves),
    )


def _changes(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[RecipeChange, ...]:
    """Keys that differ, those that decide a result first."""
    if not a or not b:
        return ()
    changes = [
        RecipeChange(key=key, a=_shown(a.get(key)), b=_shown(b.get(key)), decides=not key.startswith(PLACES))
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key)
    ]
    return tuple(sorted(changes, key=lambda each: not each.decides))


def _shown(value: object) -> object:
    """A value without what only its owner may read."""
    text = json.dumps(value, ensure_ascii=False)
    return value if (safe := masked(text)) == text else json.loads(safe)


def _curves(a: RunFacts, b: RunFacts) -> tuple[Curves, ...]:
    same = bool(a.digests.get("tokenizer")) and a.digests.get("tokenizer") == b.digests.get("tokenizer")
    stages = [_pretraining(a, b, same_tokenizer=same), _finetuning(a, b, same_tokenizer=same)]
    return tuple(each for each in stages if each.lines or each.why_not)


def _pretraining(a: RunFacts, b: RunFacts, *, same_tokenizer: bool) -> Curves:
    """Training and validation in bits per byte: nats per token of different tokenizers have no common axis.

    Bytes per token of the held-out text turn one into the other; the text that is trained on has nearly the same.
    """
    sizes = [number(field(candidates_of(run.scores).get("adapted", {}), "bytes_per_token")) for run in (a, b)]
    in_bits = all(sizes)
    lines: list[Curve] = []
    for name, run, size in (("a", a, sizes[0]), ("b", b, sizes[1])):
        loss = series(run.training, "loss")
        if in_bits and size:
            loss = tuple((step, nats / math.log(2) / size) for step, nats in loss)
        lines.append(Curve(label=name.upper(), run=name, validation=False, points=loss))
        if in_bits:
            points = series(run.training, "validation_bits_per_byte")
            lines.append(Curve(label=f"{name.upper()} validation", run=name, validation=True, points=points))
    drawn = tuple(line for line in lines if line.points)
    unit = "bits per byte" if in_bits else "nats per token"
    if drawn and not in_bits and not same_tokenizer:
        why = "the tokenizers differ and a run has no scores that say how many bytes its tokens have"
        return Curves(stage="Continued pre-training", unit=unit, lines=(), why_not=why)
    return Curves(stage="Continued pre-training", unit=unit, lines=drawn)


def _finetuning(a: RunFacts, b: RunFacts, *, same_tokenizer: bool) -> Curves:
    lines = [
        Curve(
            label=f"{name.upper()}{' validation' if key.startswith('validation') else ''}", run=name,
            validation=key.startswith("validation"), points=series(run.finetuning, key),
        )
        for name, run in (("a", a), ("b", b))
        for key in ("loss", "validation_loss")
    ]  # fmt: skip
    drawn = tuple(line for line in lines if line.points)
    if drawn and not same_tokenizer and {line.run for line in drawn} == {"a", "b"}:
        why = "the tokenizers differ, and nats per token of one are not those of the other"
        return Curves(stage="Finetuning", unit="nats per token", lines=(), why_not=why)
    return Curves(stage="Finetuning", unit="nats per token", lines=drawn)


def _costs(a: RunFacts, b: RunFacts) -> tuple[CostPair, ...]:
    def of(run: RunFacts) -> dict[str, StageCost]:
        summaries = {"model": run.training_summary, "adapter": run.finetuning_summary}
        return {each.name: each for each in stage_costs(run.manifests, summaries)}

    first, second = of(a), of(b)
    return tuple(
        CostPair(
            stage=stage.name,
            a_seconds=one.seconds if (one := first.get(stage.name)) else None,
            b_seconds=other.seconds if (other := second.get(stage.name)) else None,
            a_dollars=one.dollars if one else None,
            b_dollars=other.dollars if other else None,
            shared=bool(
                one and other and a.manifests[stage.writes].whole_digest == b.manifests[stage.writes].whole_digest
            ),
        )
        for stage in FLOW
        if stage.name in first or stage.name in second
    )  # fmt: skip


def _verdict(pairs: tuple[ScorePair, ...]) -> tuple[str, ...]:
    """A sentence for each deciding figure that both runs have."""
    sentences = []
    for candidate, measure, subject in DECIDING:
        pair = next((each for each in pairs if (each.candidate, each.measure) == (candidate, measure)), None)
        if pair is None or pair.difference is None:
            continue
        of = f"{subject} ({candidate} model)"
        figures = f"A {human_figure(pair.a)}, B {human_figure(pair.b)} bits per byte"
        around = ""
        if pair.low is not None and pair.high is not None:
            around = (
                f"; difference {pair.difference:+.4f}, 95 % interval {pair.low:+.4f} to {pair.high:+.4f}, paired "
                f"over {human_figure(pair.num_documents)}"
            )
        if not pair.better:
            word = "are the same" if pair.difference == 0 else "are not clearly apart"
            sentence = f"A and B {word} on {of}: {figures}{around}."
        else:
            sentence = f"{pair.better.upper()} is better on {of}: {figures}{around}."
        few = (
            f" Fewer than {SURE_DOCUMENTS} make the interval too narrow."
            if pair.unsure and pair.difference
            else ""
        )
        sentences.append(sentence + few)
    return tuple(sentences)


def _notes(a: RunFacts, b: RunFacts, text: Text, curves: tuple[Curves, ...]) -> tuple[str, ...]:
    notes = [f"{name}: {gate_verdict(run.scores)}" for name, run in (("A", a), ("B", b)) if run.scores]
    notes += [_missing(name, run) for name, run in (("A", a), ("B", b))]
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
    if a.digests.get("tokenizer") != b.digests.get("tokenizer") and text in ("same", "partly the same"):
        notes.append("The tokenizers differ: bits per byte still compare, losses per token do not.")
    windows = [
        [
            field(candidates_of(run.scores).get("adapted", {}), key)
            for key in ("context", "stride", "window_bos")
        ]
        for run in (a, b)
    ]
    if windows[0] != windows[1] and text in ("same", "partly the same"):
        notes.append(
            "The models were scored in windows of different length or without BOS, which causes part of the difference."
        )
    if (once := _seen_once(a, b)) > 0:
        notes.append(f"Only one run saw {once} of the questions in training; no interval counts them.")
    steps = [
        (run.recipe.get("pretrain.batch_size"), run.recipe.get("pretrain.sequence_length")) for run in (a, b)
    ]
    if steps[0] != steps[1] and curves:
        notes.append("A step of A and one of B hold different numbers of tokens.")
    notes += [f"{each.stage}: no common axis, because {each.why_not}." for each in curves if each.why_not]
    return tuple(filter(None, notes))  # fmt: skip


def _missing(name: str, run: RunFacts) -> str:
    """Name the artifacts that a run lacks."""
    lacks = [word for word in ("model", "scores") if word not in run.manifests]
    why = f"; it is {run.run.state}" if run.run and run.run.state != "finished" else ""
    return f"{name} has no {' and no '.join(lacks)} here{why}." if lacks else ""


def _seen_once(a: RunFacts, b: RunFacts) -> int:
    seen = [
        {each.get("id"): each.get("seen") for each in records(field(run.scores, "questions.listed"))} for run in (a, b)
    ]  # fmt: skip
    return sum(seen[0][key] != seen[1][key] for key in seen[0].keys() & seen[1].keys())


def _about(run: RunFacts) -> Json:
    listed = run.run.to_dict() if run.run else None
    artifacts = {word: {"uri": run.uris.get(word), "sha256": digest} for word, digest in run.digests.items()}
    return {"name": run.name, "label": run.label, "run": listed, "artifacts": artifacts}
