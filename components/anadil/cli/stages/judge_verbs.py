"""`anadil evaluate judge-export` and `judge-import`: answers for a judge, and a summary of its verdicts.

The judge, a person or a model, sees two answers and neither who wrote them nor whether it has seen the
same two before: each pair goes out twice, in both orders, because judges prefer a place.
Source: Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena", arXiv:2306.05685, section 3.4.
"""

import argparse
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts.prefetch import fetch
from anadil.cli.options import add_output_option
from anadil.cli.output import print_table
from anadil.core.candidates import before_finetuning
from anadil.core.errors import DataError, RecipeError
from anadil.core.json_text import parse_json
from anadil.text.metrics import SURE_DOCUMENTS, share_interval

log = logging.getLogger(__name__)

POINTS = {"a": 1.0, "tie": 0.5, "b": 0.0}  # Verdict -> points of the answer that is shown first.


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPair:
    """Two answers to one question."""

    prompt: str
    names: tuple[str, str]  # Candidates, in the given order.
    answers: tuple[str, str]
    reference: str | None
    ids: tuple[str, str]  # Its two rows: the first candidate's answer stands first, then second.

    @property
    def equal(self) -> bool:
        """True if there is nothing to judge."""
        return self.answers[0] == self.answers[1]


def add_judge_verb(name: str, commands: Any, text: str) -> None:
    """Add one of the two commands with its options."""
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("--scores", required=True, metavar="URI", help="scores artifact with the answers")
    command.add_argument(
        "--candidates", nargs=2, metavar="NAME",
        help="candidates whose answers are compared (default: finetuned, and what it was finetuned from)",
    )  # fmt: skip
    help_text = "decoding of the answers (default: %(default)s)"
    command.add_argument("--mode", choices=["greedy", "sampled"], default="greedy", help=help_text)
    command.add_argument("--seen", action="store_true", help="include questions that training has seen")
    if name == "judge-export":
        command.set_defaults(command=export_pairs)
        return
    command.add_argument(
        "--verdicts", required=True, metavar="FILE",
        help='file of JSON lines: {"id": of the row, "verdict": "a", "b" or "tie"}',
    )  # fmt: skip
    add_output_option(command)
    command.set_defaults(command=import_verdicts)


def export_pairs(options: argparse.Namespace) -> int:
    """Print a row for each pair of answers and order, in an order that says nothing."""
    pairs = _pairs(options)
    rows = [row for pair in pairs if not pair.equal for row in _rows(pair)]
    equal = sum(pair.equal for pair in pairs)
    log.info("%d questions in both orders; %d with equal answers are ties already", len(pairs) - equal, equal)
    for row in sorted(rows, key=lambda row: str(row["id"])):
        print(json.dumps(row, ensure_ascii=False))
    return 0


def import_verdicts(options: argparse.Namespace) -> int:
    """Print how often the first candidate won, and how much the judge prefers a place."""
    pairs = _pairs(options)
    result = verdict_summary(pairs, read_verdicts(Path(options.verdicts), pairs), pairs[0].names)
    shown = {name: _shown(value) for name, value in result.items()}
    print_table(result if options.output == "json" else shown, options.output)
    return 0


def verdict_summary(
    pairs: Sequence[AnswerPair], verdicts: Mapping[str, str], names: tuple[str, str]
) -> dict[str, Any]:
    """Summary of the verdicts (id of a row -> `a`, `b` or `tie`) of all pairs.

    A pair counts once, with the mean of its two orders, so that a preference for a place cancels out.
    """
    judged = [pair for pair in pairs if not pair.equal and all(each in verdicts for each in pair.ids)]
    both = [(POINTS[verdicts[pair.ids[0]]], 1 - POINTS[verdicts[pair.ids[1]]]) for pair in judged]
    equal = sum(pair.equal for pair in pairs)
    points = [*(sum(each) / 2 for each in both), *[0.5] * equal]
    if not points:
        raise DataError("verdicts: no question was judged in both orders; judge every row that was exported")
    rate = sum(points) / len(points)
    places = [POINTS[verdicts[each]] for pair in judged for each in pair.ids if verdicts[each] != "tie"]
    first = sum(places) / len(places) if places else None
    return {
        "candidate": names[0],
        "against": names[1],
        "questions": len(points),
        "wins": sum(point > 0.5 for point in points),
        "losses": sum(point < 0.5 for point in points),
        "ties": sum(point == 0.5 for point in points),
        "equal_answers": equal,
        "win_rate": rate,
        # Points lie between 0 and 1, so that their variance is at most that of a share.
        "win_rate_interval": share_interval(rate, len(points)),
        "unsure": len(points) < SURE_DOCUMENTS,
        "first_place_rate": first,
        "first_place_interval": share_interval(first, len(places)),
        "same_in_both_orders": sum(one == other for one, other in both) / len(both) if both else None,
        "left_out": sum(not pair.equal for pair in pairs) - len(judged),
    }


def read_verdicts(path: Path, pairs: Sequence[AnswerPair]) -> dict[str, str]:
    """Id of a row -> `a`, `b` or `tie`."""
    known = {each for pair in pairs for each in pair.ids}
    results: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    for place, line in ((f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()):
        try:
            row = parse_json(line)
            name, verdict = str(row["id"]), str(row["verdict"]).strip().lower()
        except (ValueError, LookupError, TypeError):
            raise DataError(f'{place}: is not {{"id": ..., "verdict": ...}}; write one to a line') from None
        if verdict not in POINTS:
            raise DataError(f"{place}: verdict {verdict[:40]!r} is not one of {', '.join(POINTS)}")
        if name not in known:
            raise DataError(
                f"{place}: id {name[:40]!r} is not a row of these scores; give --scores, --candidates, --mode and --seen as for the export"
            )
        if results.setdefault(name, verdict) != verdict:
            raise DataError(f"{place}: id {name} was judged {results[name]!r} before; keep one verdict")
    return results


def _pairs(options: argparse.Namespace) -> list[AnswerPair]:
    folder, manifest = fetch(options.scores, "scores")
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    first, second = options.candidates or ("finetuned", before_finetuning(scores.get("candidates", {})))
    names = first, second
    if first == second:
        raise RecipeError(f"--candidates {first} {second}: name two different ones")
    one, other = (_answers(options.scores, scores, name, options.mode) for name in names)
    prompts = [prompt for prompt in one if prompt in other]
    unseen = [prompt for prompt in prompts if options.seen or one[prompt].get("seen") is not True]
    if not unseen:
        why = "training has seen all; add --seen" if prompts else "run evaluate again"
        raise DataError(f"{options.scores}: no questions that both candidates answered; {why}")
    return [
        AnswerPair(
            prompt=prompt, names=names, answers=(one[prompt]["text"], other[prompt]["text"]),
            reference=one[prompt].get("reference"),
            ids=(_id(manifest.digest, *names, options.mode, prompt, "0"), _id(manifest.digest, *names, options.mode, prompt, "1")),
        )
        for prompt in unseen
    ]  # fmt: skip


def _answers(uri: str, scores: Mapping[str, Any], name: str, mode: str) -> dict[str, dict[str, Any]]:
    candidates = scores.get("candidates", {})
    if name not in candidates:
        raise DataError(f"{uri}: holds no candidate {name!r}; it holds {', '.join(candidates) or 'none'}")
    made = candidates[name].get("generations") or []
    return {one["prompt"]: one for one in made if one.get("kind") == "answer" and one.get("mode") == mode}


def _id(*parts: str) -> str:
    """Id of a row, which does not show who wrote what."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _rows(pair: AnswerPair) -> Iterator[dict[str, str]]:
    reference = {} if pair.reference is None else {"reference": pair.reference}
    for name, (first, second) in zip(pair.ids, (pair.answers, pair.answers[::-1]), strict=True):
        yield {"id": name, "prompt": pair.prompt, "answer_a": first, "answer_b": second, **reference}


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, tuple):
        return " to ".join(f"{end:.3f}" for end in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
