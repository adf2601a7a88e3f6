"""`anadil judge page` and `judge votes`: a blind page for people who speak the language, and what their votes say."""

import argparse
import logging
from pathlib import Path

from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import absolute
from anadil.cli.options import add_output_option, number, place
from anadil.cli.output import print_result
from anadil.core.errors import DataError, RecipeError
from anadil.core.files import write_atomic
from anadil.core.json_text import read_json
from anadil.core.table import Table
from anadil.evaluate.preference import pairs as blind
from anadil.evaluate.preference.view import FIGURES, figure_cells
from anadil.evaluate.preference.votes import open_votes, preference, read_key
from anadil.page.values import field
from anadil.report.verdict import answering

log = logging.getLogger(__name__)

NUM_PAIRS = 40
KIND = {True: "answer", False: "continuation"}


def add_judge(command: argparse.ArgumentParser) -> None:
    """Add both verbs with their options."""
    verbs = command.add_subparsers(metavar="VERB", required=True)
    text = "write a page that shows two texts side by side and not who wrote them, and the key that judges do not get"
    page = verbs.add_parser("page", help=text, description=text)
    page.add_argument("scores", metavar="SCORES", help="scores artifact with the texts")
    text = "candidates. The preference is for the first"
    page.add_argument("--between", nargs=2, required=True, metavar="NAME", help=text)
    text = "folder for judge.html and key.json"
    page.add_argument("--out", required=True, type=place, metavar="DIR", help=text)
    text = "texts that are compared (default: answers if a candidate was taught to answer)"
    page.add_argument("--kind", choices=[*KIND.values()], help=text)
    text = "decoding of the texts (default: %(default)s)"
    page.add_argument("--mode", choices=["greedy", "sampled"], default="greedy", help=text)
    page.add_argument("--seen", action="store_true", help="include questions that training has seen")
    text = "most pairs (default: %(default)s)"
    page.add_argument("--pairs", type=number(1), default=NUM_PAIRS, metavar="N", help=text)
    page.add_argument(
        "--seed", type=number(0), default=0, metavar="N", help="seed of pairs, order and places"
    )
    page.set_defaults(command=write_page, needs="report")
    text = "open the votes with the key, and print how often each candidate is preferred"
    votes = verbs.add_parser("votes", help=text, description=text)
    votes.add_argument("votes", metavar="VOTES", nargs="+", type=place, help="files that the page saved")
    text = "key.json of the page, or opened votes that others join"
    votes.add_argument("--key", required=True, type=place, metavar="FILE", help=text)
    text = "also write the opened votes, for evaluate.votes"
    votes.add_argument("--out", type=place, metavar="FILE", help=text)
    add_output_option(votes)
    votes.set_defaults(command=show_votes)


def write_page(options: argparse.Namespace) -> int:
    """Write page and key."""
    first, second = options.between
    if first == second:
        raise RecipeError(f"--between {first} {second}: name two different candidates")
    folder, manifest = fetch(options.scores, "scores")
    scores = read_json(folder / "scores.json")
    kind = options.kind or KIND[bool({first, second} & {*answering(scores)})]
    pairs = blind.read_pairs(
        options.scores, scores, (first, second), kind=kind, mode=options.mode, seen=options.seen
    )
    different = [each for each in pairs if each[1] != each[2]]
    if not different:
        raise DataError(
            f"{options.scores}: both wrote the same {len(pairs)} texts. There is nothing to judge: name other candidates"
        )
    # A later evaluation finds the scores from another folder.
    key, drawn = blind.draw_key(
        different,
        (first, second),
        uri=absolute(options.scores),
        digest=manifest.digest,
        seed=options.seed,
        count=options.pairs,
    )
    out = Path(options.out)
    path = out / "key.json"
    if path.exists() and path.read_bytes() != key.json().encode():
        raise RecipeError(
            f"{path}: is the key of another page. Without it nobody can open its votes. Name another --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(path, key.json())
    write_atomic(
        out / "judge.html", blind.blind_page(key, drawn, str(field(manifest.recipe, "language") or ""))
    )
    log.info(
        "%d of %d prompts (%s, %s). %d have equal texts and are not asked", len(drawn), len(pairs), kind, options.mode,
        len(pairs) - len(different),
    )  # fmt: skip
    log.info("send judge.html to judges, and keep key.json")
    print(out / "judge.html")
    return 0


def show_votes(options: argparse.Namespace) -> int:
    """Print the preference, by judge and over judges."""
    opened = open_votes(options.votes, read_key(Path(options.key), options.key))
    if options.out:
        write_atomic(Path(options.out), opened.json())
    figures = preference(opened.pairs)
    rows = [(judge, *figure_cells(each)) for judge, each in figures["judges"].items()]
    if len(rows) > 1:
        rows.append(("all judges", *figure_cells(figures)))
    first, second = opened.between
    table = Table(f"Preference for {first} over {second}", ("judge", *FIGURES), rows)
    print_result({"between": opened.between, **figures}, table.lines(), options.output)
    return 0
