"""`anadil clean teach`: a classifier of good text, learnt from labels."""

import argparse
import json
import logging
from pathlib import Path

from anadil.cli.options import add_output_option, place
from anadil.cli.output import print_result
from anadil.core.errors import RecipeError
from anadil.core.files import file_sha256, write_atomic
from anadil.language.labels import files_of, read_labels
from anadil.preflight.this_machine import require_packages

log = logging.getLogger(__name__)


def add_teach(command: argparse.ArgumentParser) -> None:
    """Add the command with its options."""
    text = (
        'JSON lines {"text": ..., "label": "good" or "bad"}, or the folder labels/ that anadil watch writes'
    )
    command.add_argument("labels", metavar="LABELS", nargs="+", type=Path, help=text)
    text = "file to write, in the format of fastText. Figures and digests stand beside it in FILE.json"
    command.add_argument("--out", required=True, type=place, metavar="FILE", help=text)
    add_output_option(command)
    command.set_defaults(command=teach)


def teach(options: argparse.Namespace) -> int:
    """Write the classifier, and print how it does on texts that it has not seen."""
    out, files = Path(options.out), [path for each in options.labels for path in files_of(each)]
    figures = out.with_name(f"{out.name}.json")
    if over := {out.resolve(), figures.resolve()} & {each.resolve() for each in files}:
        raise RecipeError(f"--out {out}: would write over the labels in {min(over)}. Name another file")
    labels = read_labels(files)
    require_packages("teach")
    from anadil.language.classifier import learn
    from anadil.language.fasttext_file import write_model

    fit = learn(labels.texts)
    write_model(fit.weights, out)
    result = {
        "model": str(out), "sha256": file_sha256(out), "good": labels.num_good,
        "bad": len(labels.texts) - labels.num_good, "repeated": labels.skipped["repeated"], "without_text": labels.skipped["without_text"],
        "labels": {str(path): file_sha256(path) for path in files},
        "precision": fit.precision, "recall": fit.recall, "auc": fit.auc, "auc_interval": fit.auc_interval,
        "auc_of_source_alone": fit.source_auc,
    }  # fmt: skip
    write_atomic(figures, json.dumps(result, ensure_ascii=False, indent=2) + "\n")
    alone = "sources are not named" if fit.source_auc is None else f"{fit.source_auc:.3f} by the source alone"
    low, high = fit.auc_interval
    if low <= 0.5:
        log.warning("the classifier is not surely better than chance: label more texts")
    elif fit.source_auc is not None and low <= fit.source_auc:
        log.warning(
            "the classifier is not surely better than the source of a text alone: label good and bad texts of the same sources"
        )
    skipped = f", skipped: {result['repeated']:,} repeated, {result['without_text']:,} without text"
    lines = [
        f"{out}: set clean.quality_model to it. rules.min_quality 0.5 keeps what is likelier good than bad",
        f"{labels.num_good:,} good and {result['bad']:,} bad texts{skipped}",
        f"precision {fit.precision:.3f} of texts that it calls good, unseen",
        f"recall {fit.recall:.3f} of good texts, unseen",
        f"AUC {fit.auc:.3f} [{low:.3f}, {high:.3f}], {alone}",
    ]
    print_result(result, lines, options.output)
    return 0
