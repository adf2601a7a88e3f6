"""Log lines of a stage, as people read them."""

import json


def said(line: str) -> str:
    """`stage: message` for a JSON line of a stage; any other line as it is."""
    try:
        told = json.loads(line)
        level = "" if told["level"] == "info" else f"{told['level']}: "
        return f"{told['stage']}: {level}{told['msg']}"
    except (ValueError, LookupError, TypeError):
        return line
