"""The champion as one more candidate: scored on the same documents, or left out with the reason."""

import logging
from collections.abc import Sequence
from pathlib import Path

from anadil.artifacts.base_model import model_config
from anadil.core.errors import DataError, PreflightError
from anadil.evaluate.models import EncodedDocuments, ScoredModel, encode_for_all, open_model
from anadil.model.family_table import refuse_mixture
from anadil.text.corpus import Document

log = logging.getLogger(__name__)


def encode_with_champion(
    candidates: Sequence[ScoredModel], folder: Path | None, documents: Sequence[Document]
) -> tuple[list[ScoredModel], EncodedDocuments]:
    """The candidates, with the champion where it can be scored, and the documents in the tokens of each.

    Raises:
        DataError: As `encode_for_all`, of the candidates of this run.
    """
    if folder:
        try:
            everybody = [*candidates, _open(folder)]
            return everybody, encode_for_all(everybody, documents)
        except (DataError, PreflightError) as error:
            log.warning("champion: %s; candidates are not compared with it", error)
    return list(candidates), encode_for_all(candidates, documents)


def _open(folder: Path) -> ScoredModel:
    path = folder / "merged" if (folder / "merged").is_dir() else folder
    refuse_mixture(model_config(path), f"champion ({path})")
    return open_model("champion", path)
