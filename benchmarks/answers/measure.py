"""Settings under which the demo's model answers: what it learns, how fast and for how long, a line of a table each.

    python benchmarks/answers/measure.py MODEL [SETTING ...] [--chats N]

MODEL is the model that `anadil run` made of the smoke recipe; a SETTING such as `trains=all,lr=0.003,epochs=8` is keys of
`finetune`. The last 10 % of the help desk's chats are never trained on, and N of the others are.
"""

import argparse
import json
import logging
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anadil.artifacts.storage import built_in
from anadil.evaluate.bits_per_byte import score
from anadil.evaluate.bootstrap import paired_difference
from anadil.finetune.run import run
from anadil.model.chat_ids import chat_ids
from anadil.model.load import encode_text, load_model, load_tokenizer, window_bos
from anadil.recipe.load import load_recipe
from anadil.runtime.job import Job
from anadil.text.corpus import read_documents

SETTINGS = (
    "lr=0.0001", "lr=0.003", "lr=0.003,trains_embeddings=control", "lr=0.003,trains_embeddings=all",
    "trains=all,lr=0.001", "trains=all,lr=0.002", "trains=all,lr=0.003",
)  # fmt: skip
NUM_ASKED = 12
LONGEST = 64


def main() -> None:
    """Measure each setting in a process of its own; print the table's lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("settings", nargs="*", default=SETTINGS)
    parser.add_argument("--chats", type=int, default=32)
    parser.add_argument("--inputs", type=Path, default=built_in("az/helpdesk.jsonl"))
    parser.add_argument("--rewordings", type=Path)
    parser.add_argument("--corpus", type=Path)
    given = parser.parse_args()
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    for setting in given.settings:
        sys.stdout.write(json.dumps(measured(given, setting)) + "\n")
        sys.stdout.flush()


def measured(given: argparse.Namespace, setting: str) -> dict[str, Any]:
    """One line: what was set, what it cost, and how the model answers."""
    rows = [json.loads(line) for line in given.inputs.read_text(encoding="utf-8").splitlines()]
    chats = [[message["content"] for message in row["messages"]] for row in rows]
    chats = [chat for chat in chats if len(chat) == 2]
    heldout = [json.loads(line) for line in built_in("az/helpdesk.jsonl").read_text("utf-8").splitlines()][
        -32:
    ]
    unseen = [[message["content"] for message in row["messages"]] for row in heldout]
    seen = [chat for chat in chats if chat not in unseen][: given.chats]
    folder = Path(tempfile.mkdtemp())
    file = folder / "chats.jsonl"
    file.write_text("".join(json.dumps({"prompt": q, "response": a}) + "\n" for q, a in seen))
    keys = [f"finetune.{key}" for key in setting.split(",")]
    recipe = load_recipe("smoke", ["finetune.heldout_fraction=0", "finetune.checkpoint_every=10000", *keys])
    for name in ("out", "work"):
        (folder / name).mkdir()
    before = cpu_seconds()
    run(
        Job(
            recipe=recipe, inputs={"model": given.model}, files=(str(file),), out=folder / "out",
            work=folder / "work", base_cache=folder,
        )
    )  # fmt: skip
    seconds = cpu_seconds() - before
    training = json.loads((folder / "out/training.json").read_text())
    model, tokenizer = load_model(folder / "out/merged"), load_tokenizer(folder / "out/merged")
    adapted = load_model(given.model)
    line = {"setting": setting, "chats": len(seen), "steps": training["steps"], "cpu_s": round(seconds, 1)}
    line |= {"loss": round(training["loss"], 3), "first_loss": round(training["first_loss"], 3)}
    line["exact"] = answered(model, tokenizer, seen[:: max(1, len(seen) // NUM_ASKED)][:NUM_ASKED])
    asked = {"unseen": unseen}
    if given.rewordings:
        lines = given.rewordings.read_text(encoding="utf-8").splitlines()
        asked["reworded"] = [[m["content"] for m in json.loads(one)["messages"]] for one in lines]
        line["exact_reworded"] = answered(model, tokenizer, asked["reworded"][:NUM_ASKED])
    if given.corpus:
        line["text_bits"] = round(text_bits(model, tokenizer, given.corpus), 3)
    for name, pairs in asked.items():
        nats, other = (answer_nats(one, tokenizer, pairs) for one in (model, adapted))
        num_bytes = np.array([len(answer.encode()) for _, answer in pairs])
        difference = paired_difference(nats, other, num_bytes, seed=0)
        line[f"{name}_bits"] = round(float(nats.sum() / np.log(2) / num_bytes.sum()), 3)
        line[f"{name}_minus_adapted"] = [
            round(value, 3) for value in (difference.value, difference.low, difference.high)
        ]
    return line


def cpu_seconds() -> float:
    """Peak memory of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def asked_ids(tokenizer: Any, question: str) -> list[int]:
    """A question as the model gets it."""
    return chat_ids(tokenizer, [{"role": "user", "content": question}], add_generation_prompt=True)


def answered(model: Any, tokenizer: Any, pairs: list[list[str]]) -> str:
    """How many questions are answered word for word, and ended, of how many."""
    end = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    right = 0
    for question, answer in pairs:
        ids = torch.tensor([asked_ids(tokenizer, question)])
        expected = [*encode_text(tokenizer, answer), end]
        with torch.inference_mode():
            made = model.generate(
                ids, do_sample=False, max_new_tokens=min(LONGEST, len(expected)), use_cache=True
            )
        right += made[0, ids.shape[1] :].tolist() == expected
    return f"{right}/{len(pairs)}"


def answer_nats(model: Any, tokenizer: Any, pairs: list[list[str]]) -> NDArray[np.float64]:
    """-ln p of each answer's tokens after its question."""
    nats = []
    for question, answer in pairs:
        before, ids = asked_ids(tokenizer, question), encode_text(tokenizer, answer)
        with torch.inference_mode():
            logits = model(torch.tensor([[*before, *ids]])).logits[0, len(before) - 1 : -1]
        nats.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids), reduction="sum")))
    return np.array(nats)


def text_bits(model: Any, tokenizer: Any, corpus: Path) -> float:
    """Bits per byte of the corpus's held-out part, 128 tokens at a time."""
    texts = [document.text for document in read_documents(corpus, "heldout")]
    encoded = [np.array(encode_text(tokenizer, text), dtype=np.int32) for text in texts]
    nats = score(
        model,
        [([tokenizer.bos_token_id], ids) for ids in encoded],
        bos=window_bos(tokenizer),
        context=128,
        stride=128,
        batch_tokens=4096,
        name="",
    )
    return float(nats.sum() / np.log(2) / sum(len(text.encode()) for text in texts))


if __name__ == "__main__":
    main()
