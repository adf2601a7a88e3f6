"""MLflow's model registry: versions behind `models:/name@alias`, and the translation of its errors."""

import json
import logging
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.errors import DataError, PreflightError, RecipeError, RetryableError
from anadil.core.install import install, install_module
from anadil.core.log import masked
from anadil.recipe.sections import Recipe
from anadil.recipe.tracking_address import tracking_fault
from anadil.runtime.compared_champion import DIGEST_TAG, TIMEOUTS, URI_TAG
from anadil.runtime.mlflow_records import alone_at, follow_move
from anadil.runtime.tracking_spool import tracking_uri

SCHEME = "models:/"
KIND_TAG = "anadil.kind"
SCORES_TAG = "anadil.scores"
WHOLE_TAG = "anadil.files_sha256"
"""Tag of a version: digest over every file of the artifact, MLmodel included."""
# Major version of the oldest MLflow server that is used: versions of models of runs, aliases and logged models.
OLDEST_SERVER = 3
VERSION_TIMEOUT_S = 5.0
# stdout is data.
QUIET = {
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}  # fmt: skip
READ_ONLY = re.compile(r"read-?only", re.IGNORECASE)
# Messages of MLflow's client and of database drivers if nobody answers.
AWAY = re.compile(
    r"API request to .* failed with exception|Connection refused|could not connect|Max retries exceeded|timed out|"
    r"could not translate host name",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredModel:
    """A version of a registered model."""

    name: str
    version: str
    aliases: tuple[str, ...] = ()
    uri: str
    """Place of the artifact: local path or `s3://`."""
    digest: str
    """Digest of the promoted artifact; empty if another program registered it."""
    kind: str
    """`model` or `adapter`; empty as the digest."""
    scores: str = ""
    source: str = ""
    """Directory that MLflow loads, with the file MLmodel."""
    tags: dict[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A parsed `models:/` URI: a version by number or alias."""

    name: str
    alias: str = ""
    version: str = ""


def resolve(uri: str, tracking: str | None = None) -> RegisteredModel:
    """Find the artifact and digest of a registered model; nothing of the artifact is read."""
    model = parse(uri)
    registry = open_registry(tracking, makes=False)
    with registry_errors(registry.uri):
        number = model.version or registry.number(model.name, model.alias)
        version = registry.by_number(model.name, number) if number else None
    if version is None:
        raise DataError(f"{uri}: not in the registry at {masked(registry.uri)}; {registry.known(model.name)}")
    return version


def parse(uri: str) -> ModelName:
    """The parts of a `models:/` URI."""
    text = uri.removeprefix(SCHEME)
    name, sign, alias = text.rpartition("@")
    if text != uri and sign:
        check_name(name, uri)
        if alias.lower() == "latest" or re.fullmatch(r"[vV]\d+", alias):
            raise RecipeError(
                f"{uri}: MLflow keeps the alias {alias!r} for itself; write champion or challenger"
            )
        if not re.fullmatch(r"[\w-]{1,255}", alias):
            raise RecipeError(
                f"{uri}: {alias!r} is not an alias: use letters, digits, '_' and '-' only; rename it"
            )
        return ModelName(name=name, alias=alias)
    name, _, version = text.rpartition("/")
    if text == uri or not version.isdigit():
        raise RecipeError(f"{uri}: names no version; write {SCHEME}name@champion or {SCHEME}name/3")
    check_name(name, uri)
    return ModelName(name=name, version=version)


def check_name(name: str, given_by: str) -> None:
    """Refuse a name that MLflow does not take for a registered model."""
    if not name.strip() or any(sign in name for sign in "/:@") or name in {".", ".."}:
        raise RecipeError(
            f"{given_by}: {name!r} is not a name of a registered model: '/', ':' and '@' are not allowed; rename it"
        )


@contextmanager
def _missing_ok() -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise


class Registry:
    """An open registry."""

    def __init__(self, uri: str, client: Any) -> None:
        self.uri = uri
        self.client = client
        """MLflow's own."""

    @property
    def is_server(self) -> bool:
        """True if a server stands before the database."""
        return self.uri.startswith(("http://", "https://", "arn:"))

    def by_alias(self, name: str, alias: str) -> RegisteredModel | None:
        """The version of an alias."""
        number = self.number(name, alias)
        return self.by_number(name, number) if number else None

    def number(self, name: str, alias: str) -> str:
        """Number of the version of an alias; empty without one."""
        model = self.model(name)
        return str(model.aliases.get(alias, "")) if model else ""

    def by_number(self, name: str, number: str) -> RegisteredModel | None:
        """One version."""
        with _missing_ok():
            return registered(self.client.get_model_version(name, number))
        return None

    def of_digest(self, name: str, digest: str) -> list[RegisteredModel]:
        """Versions of a name that are an artifact of this digest, the newest first."""
        query = f"name = '{name.replace(chr(39), chr(39) * 2)}' and tags.`{DIGEST_TAG}` = '{digest}'"
        versions = [registered(version) for version in self.client.search_model_versions(query)]
        return sorted(versions, key=lambda each: -int(each.version))

    def model(self, name: str) -> Any:
        """MLflow's registered model; None if it does not exist."""
        with _missing_ok():
            return self.client.get_registered_model(name)
        return None

    def known(self, name: str) -> str:
        """List what exists, as the remedy of an error."""
        with registry_errors(self.uri):
            if model := self.model(name):
                aliases = ", ".join(f"@{alias} (version {number})" for alias, number in model.aliases.items())
                return f"{name} has {aliases or 'no alias yet'}; promote a model, or name one of these"
            names = [each.name for each in self.client.search_registered_models(max_results=5)]
        there = f"it has {', '.join(names)}" if names else "it is empty"
        return f"{there}; correct the name, or run anadil promote"


def registered(version: Any) -> RegisteredModel:
    """MLflow's version of a model as ours."""
    tags = {str(key): str(value) for key, value in version.tags.items()}
    return RegisteredModel(
        name=str(version.name), version=str(version.version), aliases=tuple(sorted(map(str, version.aliases or ()))),
        uri=tags.get(URI_TAG, str(version.source)).removeprefix("file://"), digest=tags.get(DIGEST_TAG, ""),
        kind=tags.get(KIND_TAG, ""), scores=tags.get(SCORES_TAG, ""), source=str(version.source), tags=tags,
    )  # fmt: skip


def open_registry(tracking: str | None = None, *, makes: bool = True) -> Registry:
    """The registry at an address.

    Args:
        tracking: The MLflow server or database; left out, MLFLOW_TRACKING_URI.
        makes: Create a missing database file.
    """
    uri = tracking or os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri or uri == "off":
        raise RecipeError(
            "tracking.uri: no MLflow server; set it or MLFLOW_TRACKING_URI (that of anadil run: "
            "sqlite:///anadil-work/mlflow.db)"
        )
    if fault := tracking_fault(uri):
        raise RecipeError(f"tracking.uri: {masked(uri.partition('?')[0])}: {fault}")
    file = uri.removeprefix("sqlite:///")
    if file != uri and not makes and not Path(file).exists():
        raise DataError(f"tracking.uri: {uri}: no such database; promote a model first, or correct the path")
    if uri.startswith("http"):
        _refuse_old_server(uri)
    # A person waits: an absent server is to be reported in seconds, not minutes.
    os.environ.update(TIMEOUTS | QUIET | os.environ)
    try:
        from mlflow import MlflowClient, set_tracking_uri
    except ImportError:
        raise PreflightError(f"mlflow is not installed; {install('tracking')}") from None
    # SageMaker's plugin signs for the address that is set, whatever a client is given, and warns of each other one.
    if uri.startswith("arn:"):
        set_tracking_uri(uri)
    logging.getLogger("mlflow.tracking.request_header.registry").setLevel(logging.ERROR)
    with registry_errors(uri), alone_at(uri):
        # It prints the stack of what it then raises, each table that it makes, and each attempt.
        logging.getLogger("mlflow.store").setLevel(logging.CRITICAL)
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        if not uri.startswith(("http", "arn:", "sqlite:")):
            from sqlalchemy import create_engine

            # MLflow itself tries a database that does not answer for 100 s.
            create_engine(uri).connect().close()
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_registered_models(max_results=1)
        if makes:
            follow_move(uri)
        return Registry(uri, client)


def registry_address(recipe: Recipe, model: str) -> str | None:
    """Address of the registry: as for every command, else the database of `anadil run` beside the artifacts."""
    root = model.rpartition("/")[0].rpartition("/")[0]
    database = join(root, "mlflow.db")
    beside = "://" not in root and storage.store(database).exists(database)
    return tracking_uri(recipe, default=f"sqlite:///{database}" if beside else None)


def _refuse_old_server(uri: str) -> None:
    # urllib takes no user and password in an address; this page asks for none.
    scheme, _, rest = uri.rstrip("/").partition("://")
    host, slash, path = rest.partition("/")
    request = f"{scheme}://{host.rpartition('@')[2]}{slash}{path}/version"
    try:
        with urllib.request.urlopen(request, timeout=VERSION_TIMEOUT_S) as answer:  # noqa: S310
            text = answer.read(64).decode(errors="replace").strip()
    except (OSError, ValueError):
        return  # MLflow's own client says what is wrong
    major = re.match(r"(\d+)\.", text)
    if major and int(major[1]) < OLDEST_SERVER:
        raise PreflightError(
            f"{masked(uri)}: a server of MLflow {text}; this program needs {OLDEST_SERVER} or newer: upgrade the server"
        )


@contextmanager
def registry_errors(uri: str) -> Iterator[None]:
    """Turn errors of MLflow and of database drivers into ours; secrets in addresses are masked."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except ImportError as error:
        raise PreflightError(
            f"{masked(uri)}: the driver of this database is not installed ({error.name}); "
            f"{install_module(str(error.name))}"
        ) from None
    except (MlflowException, ConnectionError, TimeoutError) as error:
        raise _translated(error, uri) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"sqlalchemy", "alembic", "requests", "urllib3"}:
            raise
        raise _translated(error, uri) from None


def _translated(error: Exception, uri: str) -> PreflightError | RetryableError:
    where, text = masked(uri), _short(error)
    status = error.get_http_status_code() if hasattr(error, "get_http_status_code") else 0
    if READ_ONLY.search(str(error)):
        return PreflightError(f"{where}: the registry can only be read ({text}); ask for the right to write")
    if status in (401, 403):
        return PreflightError(
            f"{where}: the registry refuses you ({text}); set MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN"
        )
    if "database schema" in str(error) or "alembic" in str(error):
        return PreflightError(f"{where}: {text}; save a copy of the database, then run mlflow db upgrade")
    if AWAY.search(str(error)) or status >= 500 or isinstance(error, OSError):
        return RetryableError(
            f"{where}: the registry does not answer ({text}); start it, and run the same command"
        )
    return PreflightError(
        f"{where}: the registry refuses: {text}; check the address, the name and your rights"
    )


def _short(error: Exception) -> str:
    """The first line of a message, masked: drivers add their statements, clients the whole request."""
    text = str(error).strip()
    if text.startswith("{"):
        with suppress(ValueError):  # of a gateway it may be no JSON
            text = str(json.loads(text).get("message", text))
    if reason := re.search(r"\[Errno -?\d+\] ([\w ,]+)", text):  # below the client's layers
        text = reason[1]
    first = masked(text).splitlines()[0] if text else type(error).__name__
    return first if len(first) <= 300 else f"{first[:300]}..."
