"""Small artifacts in the shapes that the stages write, without running them."""

import json
import math
from pathlib import Path
from typing import Any

import zstandard

from anadil.artifacts import artifact
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job

Json = dict[str, Any]

REJECTED = {
    "language": "İstanbul'da hava bugün çok güzel, insanlar sahilde yürüyüş yapıyor ve çay içiyor.",
    "too_short": "Bakı, 2019.",
    "duplicate_lines": "Ana səhifə | Əlaqə\nAna səhifə | Əlaqə\nAna səhifə | Əlaqə\nAna səhifə | Əlaqə",
    "near_duplicate": "Kitabxana hər gün saat doqquzdan altıya qədər açıqdır, bazar günü bağlıdır.",
}
KEPT = ("Kitabxana şəhərin mərkəzindədir, oxu zalı hər kəs üçün açıqdır.",)
DROPPED = {"language": 1804, "near_duplicate": 1411, "too_short": 962, "duplicate_lines": 310, "script": 57}
PIECES = {
    "kitablardan": (["kit", "ab", "lard", "an"], ["kitab", "lar", "dan"], ["kitab", "lardan"]),
    "müəssisələrinin": (
        ["m", "ü", "\ufffd", "\ufffd", "ss", "is", "\ufffd", "\ufffd", "l", "\ufffd", "\ufffd", "rin", "in"],
        ["mü", "əs", "sis", "ələrinin"],
        ["müəssis", "ələrinin"],
    ),
}
PROMPTS = ("Azərbaycanın paytaxtı Bakı şəhəri", "Səhər tezdən durub pəncərəni açdım və")
QUESTIONS = ("Evdə internet yavaş işləyirsə, nə etməliyəm?",)
ASKED = {
    "Balansı necə yoxlayım?": (True, "*100# yığın və zəng düyməsini basın."),
    "Balansımı necə öyrənə bilərəm?": (False, "*100# yığın və zəng düyməsini basın."),
}
"""Question -> whether training has seen it, and its right answer."""
TEXTS = {
    "base": " the and the and the and the and the and the and the and",
    "adapted": " Xəzər dənizinin sahilində, Abşeron yarımadasında yerləşir və ölkənin ən böyük şəhəridir.",
    "finetuned": " Əvvəlcə modemi söndürüb yenidən yandırın. Kömək etməsə, kabeli yoxlayın və bizə zəng edin.",
}


def corpus() -> Json:
    """`stats.json`."""
    return {
        "language": "az", "in": 18_400, "kept": 13_856, "records": {"train": 13_163, "heldout": 693},
        "dropped": DROPPED, "limits": {"min_words": 50, "min_script": 0.85},
        "bad_records": {"count": 2, "first": ["web.jsonl:17: no JSON"]},
        "rules": {
            "language": {"mode": "enforce", "marginal": 1_804, "unique": 1_502, "chosen": 1_804, "bytes": 9_112_004},
            "short": {"mode": "report", "marginal": 1_263, "unique": 301, "chosen": 0, "bytes": 0},
        },
        "limits_tried": {
            "min_words": {
                "rule": "short", "in_force": 50, "documents": 400,
                "tried": [[25, 2], [38, 10], [50, 40], [75, 100], [100, 200]],
            },
            "min_script": {"rule": "script", "in_force": 0.5, "documents": 0, "tried": [[0.25, 0], [0.375]]},
        },
        "extraction": {
            "pages": 950, "characters": 4_102_000, "pages_by_resiliparse": 800, "pages_by_trafilatura": 150,
            "restored_after_resiliparse": 17_182, "lost_by_resiliparse": 664, "restored_after_trafilatura": 199,
            "lost_by_trafilatura": 228, "lost_by_name": 3_017,
        },
        "lengths": [{"bytes": 2**n, "kept": 40 * n, "dropped": 300 - 20 * n} for n in range(9, 14)],
        "bytes_in": 71_002_113, "bytes_out": 33_871_204, "words_out": 4_182_331,
    }  # fmt: skip


def fertility() -> Json:
    """`fertility.json`."""
    names = ("base", "extend-4096", "replace-4096")
    sizes = (2_048, 6_144, 4_096)
    costs = (5.3127, 2.4471, 2.2094)
    candidates = {
        name: {
            "strategy": name.split("-")[0], "asked": size, "vocab_size": size, "num_tokens": 91_224,
            "fertility": cost, "bytes_per_token": round(8.1 / cost, 4), "unused_tokens": 103,
            "samples": {word: pieces[place] for word, pieces in PIECES.items()}, "round_trip": True,
            "own_tokens": 4_096 if place else 0, "own_tokens_seen": 3_790 if place else 0, "supported_size": 4_200,
            "min_uses": 100, "uses": {"tokens": size, "never": 11, "under_10": 40, "under_100": 306},
            "domains": {"news": text_fertility(9_170, cost * 1.05), "law": text_fertility(8_000, cost * 0.9)},
            "keep": {"en": text_fertility(1_108, 1.31 + 0.4 * place)},
            "morphology": {"score": 0.31 + 0.1 * place, "num_words": 2_113},
            "cost": {
                "tokens_per_word": cost, "relative": round(cost / costs[0] * (1 + place / 50), 4),
                "embedding_parameters_added": (size - 2_048) * 192,
            },
        }
        for place, (name, size, cost) in enumerate(zip(names, sizes, costs, strict=True))
    }  # fmt: skip
    return {"language": "az", "chosen": "replace-4096", "num_words": 17_170, "candidates": candidates}


def text_fertility(words: int, cost: float) -> Json:
    """Of one kind of text in `fertility.json`."""
    return {
        "num_words": words, "num_tokens": round(words * cost), "fertility": round(cost, 4),
        "bytes_per_token": round(8.1 / cost, 4), "words_in_context": int(2_048 / cost), "continued_words": 0.61,
        "single_token_words": 0.22,
    }  # fmt: skip


def choice() -> Json:
    """`choice.json`."""
    return {
        "chosen": "replace-4096",
        "reason": "tokenizer.choice is auto; of 3 candidates replace-4096 costs least",
        "rule": {"text": "The lowest cost wins: tokens per word x compute per token."},
        "candidates": [
            {
                "name": "base",
                "why_not": "1.000 of the base's compute per word: 131.1% more than replace-4096",
            },
            {"name": "extend-4096", "why_not": "89% of its own tokens are seen 100 times, and 90% should be"},
            {"name": "replace-4096", "why_not": None},
        ],
    }


def training(steps: int = 300) -> list[Json]:
    """`training.jsonl` of a model with two phases."""
    lines = []
    for step in range(10, steps + 1, 10):
        phase, peak = (1, 0.0032) if step <= 60 else (2, 0.0024)
        noise = 0.06 * math.sin(step * 1.7)
        lines.append(
            {
                "step": step, "phase": phase, "loss": round(8.3 * math.exp(-step / 140) + 3.4 + noise, 4),
                "lr": round(peak * (0.55 + 0.45 * math.cos(step / steps * math.pi)), 6),
                "grad_norm": round(1.8 + noise * 5, 3), "tokens": step * 4_096,
                "tokens_per_s": round(2_150 + 90 * math.cos(step), 1),
            }
        )  # fmt: skip
    return lines


def finetuning() -> list[Json]:
    """`training.jsonl` of an adapter."""
    lines = [{"step": i, "epoch": i / 19, "loss": 3.1 - i / 30, "lr": 1e-4} for i in range(1, 39)]
    return [
        line | ({"validation_loss": line["loss"] + 0.2} if line["step"] % 19 == 0 else {}) for line in lines
    ]


def preference() -> list[Json]:
    """`preference.jsonl` of an adapter that learned from pairs too."""
    lines = [
        {"step": i, "loss": 0.69 - i / 60, "reward_margin": i / 12, "reward_chosen": i / 40, "reward_rejected": i / 40 - i / 12}
        for i in range(1, 25)
    ]  # fmt: skip
    return [line | ({"heldout_margin": line["step"] / 15} if line["step"] % 8 == 0 else {}) for line in lines]


def audit() -> Json:
    """`mask_audit.json`."""
    return {
        "rows": 152, "kept": 150, "dropped": {"too_long": 2}, "dropped_first": {"too_long": "helpdesk.jsonl:17"},
        "tokens": 9_120, "trained_tokens": 4_010, "trained_share": 0.4397,
        "trained_tokens_per_row": {"min": 9, "median": 24, "max": 88}, "longest_row_tokens": 141,
        "share_ending_in_eot": 1.0,
        "samples": [
            (
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nBalansı necə yoxlayım?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n⟦*100# yığın və zəng düyməsini basın.<|eot_id|>⟧"
            )
        ],
    }  # fmt: skip


def candidate(name: str, num_prompts: int | None = None, text: str | None = None) -> Json:
    """One entry of `scores.json`."""
    values = {
        "base": (2.9132, 5.3127, 48),
        "adapted": (1.7448, 2.2094, 115),
        "finetuned": (1.8021, 2.2094, 115),
    }
    bits, cost, words = values[name]
    prompts = [(prompt, "continuation") for prompt in PROMPTS] + [(prompt, "answer") for prompt in QUESTIONS]
    if num_prompts is not None:
        prompts = [(f"{place}. {PROMPTS[0]}", "continuation") for place in range(num_prompts)]
    made = [
        {
            "prompt": prompt, "kind": kind, "mode": mode, "chat": kind == "answer" and name == "finetuned",
            "text": text or TEXTS[name], "num_tokens": 40, "ended": name == "finetuned",
            "loop": name == "base" and mode == "greedy",
            "distinct_1": 0.5, "distinct_2": 0.81, "distinct_4": 0.93,
        }
        for prompt, kind in prompts
        for mode in ("greedy", "sampled")
    ]  # fmt: skip
    made += [] if num_prompts is not None else [answer(name, *question) for question in ASKED.items()]
    measures = {"samples": 3, "distinct_1": 0.5, "distinct_2": 0.81, "distinct_4": 0.93, "ended_rate": 0.33}
    return {
        "bits_per_byte": bits, "fertility": cost, "bytes_per_token": round(8.1 / cost, 4), "words_in_context": words,
        "num_documents": 120, "num_words": 17_170, "num_bytes": 139_820, "num_tokens": int(17_170 * cost),
        "context": 256, "stride": 256, "dtype": "float32", "device": "cpu",
        "retained": {"en": {"base": 2.1543, "adapted": 2.3311, "finetuned": 2.3956}[name]},
        "repetition": {
            "greedy": measures | {"loop_rate": 1.0 if name == "base" else 0.1667},
            "sampled": measures | {"loop_rate": 0.0},
        },
        "generations": made,
    } | answered(name)  # fmt: skip


def answer(name: str, question: str, known: tuple[bool, str]) -> Json:
    """One greedy answer to a question with a reference."""
    seen, reference = known
    exact = name == "finetuned" and seen
    return {
        "prompt": question, "kind": "answer", "mode": "greedy", "chat": name == "finetuned",
        "text": reference if exact else f"{name} bilmir.", "num_tokens": 12, "ended": name == "finetuned", "loop": False,
        "distinct_1": 0.5, "distinct_2": 0.81, "distinct_4": 0.93, "seen": seen, "reference": reference, "exact": exact,
        "chrf": 100.0 if exact else 11.5, "language": "az",
    }  # fmt: skip


def answered(name: str) -> Json:
    """What `scores.json` holds of a candidate beside bits per byte on all held-out text."""
    bits = {"base": 3.1, "adapted": 2.0132, "finetuned": 1.2047}[name]
    right = {"base": 0.51, "adapted": 0.58, "finetuned": 0.64}[name]

    most = {"value": 0.875, "num": 24, "interval": [0.69, 0.96]}

    def pairs(num: int, share: float) -> Json:
        return {
            "num": num, "bits_per_byte": bits, "bits_per_byte_interval": [bits - 0.1, bits + 0.1], "chrf": 41.27,
            "exact": share, "ended": 0.95,
        }  # fmt: skip

    return {
        "questions": pairs(140, 0.25),
        "seen_questions": pairs(32, 0.9688 if name == "finetuned" else 0.0),
        "choices": {"xcopa": {"num": 500, "accuracy": right, "interval": [right - 0.04, right + 0.04], "chance": 0.5}},
        "domains": {"law": bits * 0.9, "news": bits * 1.2},
        "domain_figures": {
            "law": {"num_documents": 104, "num_bytes": 90_000, "interval": [bits * 0.8, bits]},
            "news": {"num_documents": 16, "num_bytes": 9_000, "interval": [bits, bits * 1.4], "unsure": True},
        },
        "sources": {"web.jsonl": bits},
        "output_language": {"num": 24, "own": 0.875, "shares": {"az": 0.875, "tr": 0.125}},
        "writing": {"greedy": {"texts": 24, "words": 12} | dict.fromkeys(("sound", "own_language", "loops"), most)},
    }  # fmt: skip


def scores(**more: Any) -> Json:
    """`scores.json`."""
    gain = {"low": -1.2514, "high": -1.0851, "num_documents": 120, "draws": 2_000, "significant": True}
    rows = (
        ("adapted.fertility", 0.4159, 1.0, True), ("adapted.bits_per_byte", 0.5989, 1.0, True),
        ("adapted.contaminated_share", 0.0167, 0.05, True),
        ("adapted.bits_per_byte_significant", -1.0851, 0.0, False),
        ("finetuned.fertility", 0.4159, 1.0, True), ("finetuned.retained.en", 1.112, 1.25, True),
        ("finetuned.bits_per_byte", 1.0328, 1.05, True), ("finetuned.loops", 0.0, 0.5, True),
    )  # fmt: skip
    checks = [
        {"name": name, "value": value, "limit": limit, "passed": True, "enforced": enforced}
        for name, value, limit, enforced in rows
    ]
    return {
        "candidates": {name: candidate(name, **more) for name in ("base", "adapted", "finetuned")},
        "differences": {"adapted - base": {"value": -1.1684} | gain, "finetuned - base": {"value": -1.1111} | gain,
                        "finetuned - adapted, answers": {"value": -0.8085, "low": -0.91, "high": -0.7, "num_documents": 140, "significant": True}},
        "tasks": {
            "belebele_azj_Latn": {
                name: {"metric": "acc", "value": value, "stderr": 0.0141, "chance": 0.25}
                for name, value in (("base", 0.26), ("adapted", 0.31), ("finetuned", 0.34))
            }
        },
        "task_facts": {
            "belebele_azj_Latn": {"measures": "reading comprehension", "questions": 900, "contaminated": 2}
        },
        "contamination": {
            "unit": "words", "ngram": 8, "num_documents": 120, "num_train_documents": 13_163, "exact": ["ab12"],
            "contaminated": ["ab12", "cd34"], "overlapping": ["ab12", "cd34", "ef56"], "coverage": 0.0171,
            "share": 0.0167,
        },
        "gate": {"passed": True, "released": "finetuned", "checks": checks},
        "heldout": {"source": "corpus", "files": [], "sha256": "0f" * 32, "num_documents": 120, "altered": 0},
    }  # fmt: skip


def artifacts(root: Path, **changed: Any) -> dict[str, Path]:
    """Write sealed artifacts below `root`; `changed` replaces files by the name of their function."""
    content = {
        "corpus": {"stats.json": changed.get("corpus", corpus())}
        | {
            f"rejected/{rule}.jsonl.zst": [
                {"reason": rule, "value": 0, "limit": 0.85, "id": "0a1b", "text": text, "url": ""}
                | {"source": f"/data/raw/{rule}.jsonl:7"}
            ]
            for rule, text in changed.get("rejected", REJECTED).items()
        }
        | {
            "samples/kept.jsonl.zst": [
                {"id": "0a1c", "text": text, "source": "/data/raw/web.jsonl:9", "url": ""}
                for text in changed.get("kept", KEPT)
            ]
        },
        "tokenizer": {
            "fertility.json": changed.get("fertility", fertility()),
            "choice.json": changed.get("choice", choice()),
            "speed.json": {
                "base": {"tokens_per_cpu_s": 1_204_311},
                "replace-4096": {"tokens_per_cpu_s": 1_398_020},
            },
        },
        "model": {
            "training.jsonl": changed.get("training", training()),
            "training.json": {
                "loss": 4.4261,
                "steps": 300,
                "tokens": 1_228_800,
                "tokens_per_s": 2151.3,
                "parameters": 1_904_640,
                "phases": [
                    {"trains": "embeddings", "steps": 60, "lr": 0.0032, "trainable_parameters": 524_288},
                    {"trains": "all", "steps": 240, "lr": 0.0024, "trainable_parameters": 1_904_640},
                ],
            },
        },
        "adapter": {
            "mask_audit.json": changed.get("audit", audit()),
            "training.jsonl": changed.get("finetuning", finetuning()),
            "training.json": {"steps": 38, "epochs": 2.0, "loss": 1.9, "trainable_parameters": 1_114_112}
            | ({"preference": changed["preference"]} if "preference" in changed else {}),
            **({"preference.jsonl": preference()} if "preference" in changed else {}),
        },
        "scores": {"scores.json": changed.get("scores", scores())},
        **({"merged": {"merge.json": changed["merge"]}} if "merge" in changed else {}),
    }
    for kind, files in content.items():
        for name in changed.get("without", {}).get(kind, ()):
            del files[name]
    for kind, name in changed.get("cards", {}).items():
        content[kind][name] = {"card": kind}
    content["model"]["training.json"] |= changed.get("summary", {})
    seconds, recipe = changed.get("seconds", {}), changed.get("made_by", {})
    return {
        kind: _sealed(root / kind, kind, files, recipe, {"seconds": seconds[kind]} if kind in seconds else {})
        for kind, files in content.items()
    }


def job(root: Path, recipe: Recipe | None = None, **changed: Any) -> Job:
    """A job of the report stage on the artifacts of the fixture."""
    out = root / "out"
    out.mkdir(parents=True)
    inputs = artifacts(root / "in", **changed)
    beside: Json = {
        "uris": {kind: f"s3://runs/{kind}/0a1b" for kind in inputs},
        "target": "s3://runs/report/77aa",
    }
    return Job(
        **(beside if changed.get("beside") else {}),
        recipe=recipe or Recipe.model_validate({"base": {"model": "tiny"}}),
        inputs=inputs,
        out=out,
        work=root / "work",
        base_cache=root / "base",
    )


def _sealed(folder: Path, kind: str, files: dict[str, Any], recipe: Json, figures: Json) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        lines = content if isinstance(content, list) else [content]
        text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()
        path.write_bytes(zstandard.compress(text) if name.endswith(".zst") else text)
    artifact.seal(
        folder, kind=kind, origin={"stage": kind}, program={"version": "0.1.0", "image": ""}, recipe=recipe,
        figures=figures,
    )  # fmt: skip
    return folder
