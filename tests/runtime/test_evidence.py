import json
from pathlib import Path

from anadil.core.stages import STAGES
from anadil.runtime import evidence
from anadil.runtime.mlflow_spool import Tracker


def test_a_first_line_that_nobody_can_parse_has_no_columns(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"text": "a", "x": ' + "[" * 100_000)
    spool = tmp_path / "spool.jsonl"

    evidence.tell_inputs(
        Tracker(spool), STAGES["clean"], {}, {}, {f"file {chats} of clean.inputs": "0a" * 32}
    )

    (dataset,) = json.loads(spool.read_text())["datasets"]
    assert (dataset["name"], dataset["schema"]) == ("chats.jsonl", {})
