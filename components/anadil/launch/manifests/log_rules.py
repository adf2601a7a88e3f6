"""How HyperPod's operator can tell from the log that a training job hangs or has gone wrong.

The rules match lines of `anadil.core.log.JsonFormatter` that `anadil.core.progress` writes. HyperPod's
launcher puts the rank before a line, so no pattern is bound to its beginning.

Source: aws/sagemaker-hyperpod-cli (commit 011ca92), LogMonitoringConfiguration.
"""

from typing import Any

START_S = 7_200
"""Until the first progress line: the base model and the corpus are fetched. Assumption."""
SILENCE_S = 1_800
"""Between two progress lines, which come every ten seconds or at each step; a checkpoint lies between
some. Assumption."""
TOO_HIGH = 13
"""Loss in nats that is worse than a guess among 400,000 tokens (ln 400,000 = 12.9)."""
TOO_HIGH_LINES = 30
"""Such lines in a row, five minutes or more. Assumption."""
DONE = r'"figures": \{'
"""The last line of a stage, after which it only ends."""


def log_rules(stage: str) -> list[dict[str, Any]]:
    """`logMonitoringConfiguration` of a training stage."""
    said = rf'"stage": "{stage}", "rank": 0, "msg": "'
    return [
        {
            "name": "progress",
            # No group that counts: it would be taken for a number to compare.
            "logPattern": rf'{said}[^"]*: [0-9,]+(?: of [0-9,]+, [^"]*)?"',
            "expectedStartCutOffInSeconds": START_S,
            "expectedRecurringFrequencyInSeconds": SILENCE_S,
            "stopPattern": DONE,
        },
        {
            "name": "loss",
            # The one group is the number that is compared.
            "logPattern": rf'{said}[^"]*, loss ([0-9.]+)"',
            "metricThreshold": TOO_HIGH,
            "operator": "gt",
            "metricEvaluationDataPoints": TOO_HIGH_LINES,
            "stopPattern": DONE,
        },
    ]
