"""A `merge.json` of a merge by `auto`, for tests of pages about it."""

from typing import Any


def measured_merge(**more: Any) -> dict[str, Any]:
    """The table of a merge whose share and weight were chosen by measuring; `more` replaces parts of it."""

    def point(share: float, weight: float, target: float, english: float) -> dict[str, Any]:
        text = {"bits_per_byte": 1.113 * english, "ratio": english, "high": english + 0.02}
        return {
            "base_share": share, "weights": [weight], "within": english + 0.02 <= 1.1, "target": target,
            "retained": {"en": text},
        }  # fmt: skip

    shares = [
        (0, 2.224, 1.156), (0.125, 2.239, 1.088), (0.1875, 2.257, 1.047), (0.25, 2.278, 1.016), (0.5, 2.444, 0.988),
        (0.75, 2.729, 0.986), (1, 3.138, 1),
    ]  # fmt: skip
    weights = [(0.25, 2.26, 1.046), (0.5, 2.278, 1.044), (0.75, 2.295, 1.05), (1, 2.32, 1.06)]
    table: dict[str, Any] = {
        "base": "meta-llama/Llama-3.2-1B",
        "base_share": 0.1875,
        "add": [
            {
                "model": "/models/Llama-3.2-1B-Instruct",
                "minus": "meta-llama/Llama-3.2-1B",
                "weight": 0.5,
                "control_tokens": ["<|eot_id|>", "<|start_header_id|>"],
                "relative_difference": 0.0412,
            }
        ],
        "points": [
            *(point(share, 0, target, english) for share, target, english in shares),
            *(point(0.1875, weight, target, english) for weight, target, english in weights),
        ],
        "rules": ["base_share: the fewest bits per byte", "weight: the largest"],
        "reasons": ["base_share 0.1875: the fewest bits per byte", "add.0.weight 0.5: the largest"],
        "chosen": {"base_share": 0.1875, "weights": [0.5]},
        "limits": {"retained": 1.1, "target": 1.02},
        "texts": {"target": 64, "en": 4},
    }
    return table | more
