"""fastText models of the user's: identifiers and classifiers of quality. Nothing is downloaded."""

import functools
import re
from pathlib import Path
from typing import Any

from anadil.core.errors import IntegrityError, PreflightError
from anadil.core.files import file_sha256
from anadil.core.install import install
from anadil.core.processes import allow_more_memory

SIGNS = re.compile(r"(?<!\S)(?:</s>(?!\S)|__label__)")
"""Words that fastText does not take for text. Source: facebookresearch/fastText 0.9.2, dictionary.cc, `readWord`, `getLine`."""


@functools.lru_cache(maxsize=2)
def load_fasttext(path: str, sha256: str = "") -> Any:
    """A fastText model."""
    try:
        # fasttext-predict has the module. `fasttext-wheel` fails on NumPy 2, whose predict() asks for an array without a copy.
        import fasttext
    except ImportError:
        raise PreflightError(
            f"the fastText model {path} needs the package fasttext-predict: {install('clean')}"
        ) from None
    if not Path(path).is_file():
        raise PreflightError(f"the fastText model {path} is not there; put it there, or name another file")
    if sha256 and file_sha256(path) != sha256:
        raise IntegrityError(
            f"the language model {path} is not the one that the pack was made with; learn the language again"
        )
    # The limit of a record would end the process that loads a model.
    allow_more_memory(Path(path).stat().st_size)
    try:
        return fasttext.load_model(path)
    except ValueError as error:
        raise PreflightError(f"{path} is no fastText model: {error}") from None


def one_line(text: str) -> str:
    """Return a text as a line of plain words. fastText ends a text at `</s>`, skips labels, and splits at zero bytes."""
    line = " ".join(text.replace("\0", " ").split())
    return (
        SIGNS.sub(lambda match: f"{match[0][0]} {match[0][1:]}", line)
        if "</s>" in line or "__label__" in line
        else line
    )


def predict(model: Any, text: str, num_labels: int = 1) -> dict[str, float]:
    """Labels and probabilities of a text, likeliest first; `num_labels` -1 for all."""
    labels, shares = model.predict(one_line(text), k=num_labels)
    return dict(zip(map(str, labels), map(float, shares), strict=True))


class QualityModel:
    """Scores texts by the probability of one label."""

    def __init__(self, path: str, label: str) -> None:
        self._model, self._label = load_fasttext(path), label
        known = predict(self._model, "a", -1)
        if label not in known:
            raise PreflightError(
                f"clean.quality_model: the model has no label {label}; set clean.quality_label to one of "
                f"{', '.join(sorted(known)[:10])}"
            )

    def score(self, text: str) -> float:
        """0 to 1."""
        # Sums of float32 shares exceed 1 by rounding.
        return min(1.0, predict(self._model, text, -1).get(self._label, 0.0))
