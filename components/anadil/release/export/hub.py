"""Upload of an exported model to the Hugging Face hub, private by default."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anadil.core.errors import AnadilError, PreflightError, RecipeError, RetryableError

log = logging.getLogger(__name__)

TOKEN = (
    "set HF_TOKEN to a token with the right to write (huggingface.co/settings/tokens), or run `hf auth login`"  # noqa: S105  what to set
)
READERS = ("read",)
"""Roles in an organization that may not upload."""


def check_rights(hub_id: str) -> str:
    """Check that a model can be uploaded, before hours of export; nothing is created.

    Returns:
        The id with its owner.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(hub_id)
    except HFValidationError as error:
        raise RecipeError(f"--push {hub_id!r}: is not a hub id ({error}); give OWNER/NAME") from None
    try:
        user: dict[str, Any] = _api().whoami()
    except Exception as error:  # noqa: BLE001  the client raises errors of several libraries
        raise _failure(hub_id, error) from None
    owner, _, name = hub_id.rpartition("/")
    if not owner:
        return f"{user['name']}/{name}"
    roles = {each["name"]: each.get("roleInOrg") for each in user.get("orgs", ())}
    if owner != user["name"] and roles.get(owner, "read") in READERS:
        mine = ", ".join([user["name"], *(each for each, role in roles.items() if role not in READERS)])
        raise PreflightError(
            f"--push {hub_id}: the token is of {user['name']}, who may not write to {owner}; give one of {mine} as owner, "
            "or a token of a member who may"
        )
    access = (user.get("auth") or {}).get("accessToken") or {}
    if access.get("role") == "read":
        raise PreflightError(f"--push {hub_id}: the token may only read; {TOKEN}")
    return hub_id


def push(folder: Path, names: Sequence[str], hub_id: str, *, private: bool = True) -> str:
    """Upload files of a folder in one commit; an existing repository keeps its visibility.

    Returns:
        The model's page.
    """
    api = _api()
    try:
        page = str(api.create_repo(hub_id, private=private, exist_ok=True))
        if private and api.model_info(hub_id).private is False:
            raise PreflightError(
                f"--push {hub_id}: the repository is there and public, and nothing was uploaded; add --public, make it "
                "private on the hub, or give another id"
            )
        api.upload_folder(
            repo_id=hub_id,
            folder_path=folder,
            allow_patterns=[
                "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name) for name in names
            ],
            commit_message="Upload by anadil export",
        )
    except Exception as error:  # noqa: BLE001  the client raises errors of several libraries
        raise _failure(hub_id, error) from None
    return page


def _api() -> Any:
    from huggingface_hub import HfApi

    # Read here: the library reads its environment once, when it is imported.
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=os.environ.get("HF_TOKEN"))


def _failure(hub_id: str, error: Exception) -> AnadilError:
    """Translate an error of the client."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, Exception):  # "Error while uploading ..."
        return _failure(hub_id, cause)
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, LocalTokenNotFoundError):
        return PreflightError(f"--push {hub_id}: no token; {TOKEN}")
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status == 401:
        return PreflightError(f"--push {hub_id}: the hub does not know the token; {TOKEN}")
    if status is not None and 400 <= status < 500 and status not in (408, 429):
        return PreflightError(
            f"--push {hub_id}: the hub refused ({status}: {first}); check the id and the rights of the token"
        )
    if isinstance(error, (HfHubHTTPError, OSError)) or "httpx" in type(error).__module__:
        return RetryableError(
            f"--push {hub_id}: the hub did not answer ({first}); run the same command again"
        )
    raise error
