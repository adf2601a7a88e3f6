"""Candidates for a base: fetched, told apart by the digest of their files, with what those files declare."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from anadil.artifacts.base_kind import base_kind, card_fields, stored_template, words_of_field
from anadil.artifacts.base_model import BUILT_IN, TINY, base_tokenizer, check_base, model_config
from anadil.artifacts.base_vocabulary import read_base, require_changeable, require_end
from anadil.core import errors
from anadil.core.errors import AnadilError, RecipeError, message_of
from anadil.core.format import one_line
from anadil.model.family_table import LAYOUTS, check_family, supports
from anadil.model.tiny import base_model
from anadil.page.licence import licence_of
from anadil.recipe.sections import Base, Recipe, Strategy
from anadil.runtime.cache_key import BASE_FILES, base_files
from anadil.runtime.execute import base_cache

log = logging.getLogger(__name__)

LEFT_OUT = (
    RecipeError,
    errors.DataError,
    errors.PreflightError,
    errors.IntegrityError,
    errors.RetryableError,
)
"""Errors of a candidate for which it is left out. A signal and a budget end the command."""
KEY = "CANDIDATE"
"""Name of a candidate in messages, as in the usage of the command."""
NOT_SAID = "not said"
NO_TEMPLATE = "it has no chat template"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A candidate whose files are here."""

    name: str
    """As the command line names it."""
    base: Base
    path: Path
    digest: str
    """SHA-256 over its weights, configuration and tokenizer."""
    config: Mapping[str, Any] = field(repr=False)
    declared: Mapping[str, Any]
    """Statements of its own files on what it is. Its name is not evidence."""
    strategies: Mapping[str, str]
    """Strategy of the recipe's tokenizer -> reason why its vocabulary cannot be changed so. Empty if it can."""
    fault: str
    """Reason why the recipe cannot train it. Empty if it can."""

    @property
    def model_type(self) -> str:
        """Key of its family."""
        return str(self.config.get("model_type"))

    @property
    def slug(self) -> str:
        """Name for files and logs."""
        plain = re.sub(r"[^\w.-]+", "-", self.name.rstrip("/")).strip("-.")[-40:]
        return f"{plain}-{self.digest[:8]}"

    def table(self) -> dict[str, Any]:
        """Entry of the JSON."""
        return {
            "name": self.name, "revision": self.base.revision, "digest": self.digest, "declared": dict(self.declared),
            "model_type": self.model_type, "trains": not self.fault, "why_not_trained": self.fault or None,
            "layouts": [layout for layout in LAYOUTS if supports(self.model_type, layout)],
            "tokenizer_strategies": {name: why or None for name, why in self.strategies.items()},
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A candidate that is left out."""

    name: str
    error: AnadilError

    def table(self) -> dict[str, Any]:
        """Entry of the JSON."""
        return {"name": self.name, "left_out": message_of(self.error), "exit_code": self.error.exit_code}


def take(names: Sequence[str], recipe: Recipe) -> tuple[list[Candidate], list[Refused]]:
    """Fetch the candidates, equal ones once. A refused one leaves the others."""
    candidates: dict[str, Candidate] = {}
    refused = []
    for name in dict.fromkeys(names):
        try:
            candidate = _take(name, recipe)
        except LEFT_OUT as error:
            log.warning("%s: left out: %s", name, message_of(error))
            refused.append(Refused(name=name, error=error))
            continue
        if same := candidates.get(candidate.digest):
            log.warning("%s: has the same files as %s, so it is measured once", name, same.name)
        else:
            candidates[candidate.digest] = candidate
    return [*candidates.values()], refused


def with_base(recipe: Recipe, base: Base) -> Recipe:
    """Return the recipe with another base."""
    return recipe.model_copy(update={"base": base})


def _base_of(name: str) -> Base:
    model, at, revision = name.rpartition("@")
    given = (
        {"model": name}
        if not at or Path(name).expanduser().is_dir()
        else {"model": model, "revision": revision}
    )
    try:
        return Base.model_validate(given)
    except ValidationError as error:
        raise RecipeError(
            f"{KEY} {name!r}: {error.errors()[0]['msg'].removeprefix('Value error, ')}. Give what base.model of a recipe may be"
        ) from None


def _take(name: str, recipe: Recipe) -> Candidate:
    base, cache = _base_of(name), base_cache(recipe)
    cache.mkdir(parents=True, exist_ok=True)
    check_base(base, KEY)
    declares = base_tokenizer(base, cache, KEY)
    if (declares / "config.json").is_file():  # `tiny` has none before it is made
        check_family(model_config(declares), {}, KEY)  # before its weights are fetched
    path = base_model(base, cache, KEY)
    config = model_config(path)
    changes: dict[str, str] = {}
    for strategy in dict.fromkeys(recipe.tokenizer.strategies):
        changes[strategy] = _fault(_check_strategy, recipe, name, config, declares, strategy)
    return Candidate(
        name=name, base=base, path=path, digest=base_files(str(path))[BASE_FILES], config=config,
        declared=_declared(base.model, declares), strategies=changes,
        fault=_fault(check_family, config, recipe.pretrain.parallelism.model_dump(), KEY),
    )  # fmt: skip


def _declared(model: str, folder: Path) -> dict[str, Any]:
    licence = licence_of(model if model in BUILT_IN else str(folder))
    kind = base_kind(folder, TINY if model == TINY else "")  # without a name that it could judge by
    says_nothing = kind.kind == "unknown" or kind.reasons == (NO_TEMPLATE,)
    card = card_fields(folder)
    keys = {"made_from": "base_model", "made_by": "base_model_relation", "languages": "language"}
    words = {name: [one_line(each, 100) for each in words_of_field(card, key)] for name, key in keys.items()}
    return {
        "licence": licence.id, "licence_says": licence.told_by, "kind": NOT_SAID if says_nothing else kind.kind,
        "kind_says": one_line(kind.clause), "has_template": stored_template(folder) is not None, **words,
    }  # fmt: skip


def _check_strategy(
    recipe: Recipe, name: str, config: Mapping[str, Any], folder: Path, strategy: Strategy
) -> None:
    check_family(config, {}, KEY, strategies=(strategy,))
    tokenizer = read_base(folder)
    require_end(folder, tokenizer)
    require_changeable(tokenizer, name, recipe.tokenizer.model_copy(update={"strategies": (strategy,)}))


def _fault(check: Callable[..., None], *arguments: Any) -> str:
    """Return the reason of a refusal, or nothing."""
    try:
        check(*arguments)
    except LEFT_OUT as error:
        return message_of(error)
    return ""
