"""`anadil language`: learn a language pack from text, show one, list the ids that need none."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anadil.artifacts import storage
from anadil.cli.options import add_output_option
from anadil.cli.output import print_lines, print_result
from anadil.core.errors import DataError, RecipeError
from anadil.core.files import file_sha256
from anadil.preflight.this_machine import require_packages
from anadil.text.language import known_languages, language_codes

if TYPE_CHECKING:
    from anadil.text.language_data import LanguageModel

MIN_LABELLED = 0.9  # Share of the sample that a fastText model must call by one name.
SAMPLED = 500


def add_language(command: argparse.ArgumentParser) -> None:
    """Put the command among those of `anadil`."""
    actions = command.add_subparsers(metavar="ACTION", required=True)
    text = "learn a pack from 1 MB or more of good text, and print each decision with its evidence"
    learn = actions.add_parser("learn", help=text, description=text)
    learn.add_argument("name", metavar="NAME", help="id of the language, such as kk, or one made up")
    learn.add_argument(
        "sample", nargs="+", metavar="SAMPLE", help="good text: .txt, .jsonl[.gz|.zst], .parquet"
    )
    text = "text that clean shall drop: noise, or the nearest languages; may be given several times"
    learn.add_argument("--bad", nargs="+", action="extend", default=[], metavar="FILE", help=text)
    text = "learn the pack although CLD2 takes the sample for another language, whose text may then pass"
    learn.add_argument("--accept-sibling", action="store_true", help=text)
    text = "a fastText identifier such as GlotLID or OpenLID; the pack names it, so it must stay there"
    learn.add_argument("--language-model", metavar="PATH", help=text)
    learn.add_argument("--text-field", default="text", metavar="KEY", help="default: %(default)s")
    learn.add_argument("--out", type=Path, metavar="PACK", help="file to write (default: NAME.yaml)")
    learn.set_defaults(command=learn_pack)
    text = "list the ids of packs, and of the languages that CLD2 knows"
    listed = actions.add_parser("list", help=text, description=text)
    add_output_option(listed)
    listed.set_defaults(command=list_languages)


def list_languages(options: argparse.Namespace) -> int:
    """Print every id that a recipe may name without a pack of the user's."""
    packs = set(language_codes())
    rows = [
        {"id": row.code, "script": row.script, "name": row.name, "pack": row.code in packs}
        for row in known_languages().values()
        if row.cld2 or row.code in packs
    ]
    lines = (
        f"{row['id']:<8}{row['script']:<6}{'pack' if row['pack'] else '':<6}{row['name']}" for row in rows
    )
    print_result(rows, lines, options.output)
    return 0


def learn_pack(options: argparse.Namespace) -> int:
    """Write the pack, and print what was decided."""
    require_packages("clean")
    import yaml

    from anadil.clean.shards.shards import names
    from anadil.language.identify_sample import sibling_of
    from anadil.language.learn_language import learn_language
    from anadil.language.sample_parts import read_texts

    out = options.out or Path(f"{options.name}.yaml")
    _refuse_unfit(out, options.name)
    sample = storage.expand(options.sample, "SAMPLE")
    bad = storage.expand(options.bad, "--bad") if options.bad else []
    model = options.language_model
    learnt = learn_language(
        options.name,
        read_texts(sample, options.text_field),
        {name: read_texts([uri], options.text_field) for name, uri in zip(names(bad), bad, strict=True)},
        (lambda texts: _model(model, texts)) if model else None,
    )
    if (label := learnt.pack.identification.sibling) and not options.accept_sibling:
        sibling = sibling_of(label)
        raise DataError(
            f"{options.name}: CLD2 takes the sample for {sibling}, and only text of that can teach the pack to drop it; give files in "
            f"it as --bad, or keep what may pass with --accept-sibling (if the sample is in {sibling}, give it that id)"
        )
    data = learnt.pack.model_dump(mode="json", exclude_defaults=True)
    head = f"# {learnt.pack.name}, learnt by `anadil language learn`; `learnt` says on how much evidence.\n"
    text = yaml.safe_dump(data, allow_unicode=True, sort_keys=False, width=100)
    out.write_text(head + text, encoding="utf-8")
    print_lines(learnt.report)
    print(f"{out} written; name it in the recipe, `language: {out}`", file=sys.stderr)
    return 0


def _refuse_unfit(out: Path, name: str) -> None:
    from anadil.text.language import PACK_SUFFIXES
    from anadil.text.language_pack import CODE

    if not re.fullmatch(CODE, name.replace("_", "-")):
        raise RecipeError(
            f"{name!r}: the id of a language is made of letters, digits and hyphens, 64 at most, such as kk or crh-Latn"
        )
    if out.suffix not in PACK_SUFFIXES[:2]:
        raise RecipeError(f"--out {out}: a pack's name ends in .yaml")
    if not out.absolute().parent.is_dir():
        raise RecipeError(f"--out {out}: there is no directory {out.absolute().parent}")


def _model(path: str, texts: Sequence[str]) -> "LanguageModel":
    """The label that a fastText model has for most of the texts."""
    from collections import Counter

    from anadil.text.fasttext_model import load_fasttext, predict
    from anadil.text.language_data import LanguageModel

    place = str(Path(path).absolute())
    model = load_fasttext(place)
    labels = Counter(next(iter(predict(model, text)), "") for text in texts[:SAMPLED])
    label, count = labels.most_common(1)[0]
    if count < MIN_LABELLED * labels.total():
        result = ", ".join(f"{name} {number / labels.total():.0%}" for name, number in labels.most_common(3))
        raise DataError(
            f"--language-model {path}: does not know this language; it takes the sample for {result}"
        )
    return LanguageModel(path=place, label=label, sha256=file_sha256(place))
