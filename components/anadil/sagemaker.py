"""Where the machines of a SageMaker training job meet, in torchrun's own variables."""

import json
from pathlib import Path

from anadil.errors import PreflightError

RESOURCES = Path("/opt/ml/input/config/resourceconfig.json")
"""What SageMaker tells each container about the others. Source: SageMaker developer guide,
"How Amazon SageMaker AI provides training information"."""
PORT = 29_400
"""Any free one; torchrun's own default."""


def rendezvous(resources: Path = RESOURCES) -> dict[str, str]:
    """PET_* variables of this machine; none outside SageMaker or on one machine alone.

    Args:
        resources: File that SageMaker writes.

    Raises:
        PreflightError: The file is not what SageMaker writes.
    """
    if not resources.is_file():
        return {}
    try:
        told = json.loads(resources.read_text(encoding="utf-8"))
        hosts, here = sorted(told["hosts"]), told["current_host"]
        rank = hosts.index(here)
    except (ValueError, LookupError, TypeError) as error:
        raise PreflightError(
            f"{resources}: not SageMaker's ({error!r}); run the image on SageMaker"
        ) from None
    if len(hosts) == 1:
        return {}
    return {
        "PET_NNODES": str(len(hosts)),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": hosts[0],
        "PET_MASTER_PORT": str(PORT),
    }
