"""A chat vector made of English chats, added to models that learnt Azerbaijani, as Markdown tables.

ANADIL_DATA=DIR python benchmarks/merge/chat_vector.py --base DIR [--work DIR] [--methods]
ANADIL_DATA=DIR python benchmarks/merge/chat_vector.py --base DIR --trained NAME=MODEL,TOKENIZER ... --language eu --questions FILE

The pair is made here: `minus`, and the same after English chats whose answers are a line. Its difference is added to models
with the base's own vocabulary and with an extended one. All are asked in Azerbaijani. No chat of the pair is Azerbaijani.
`--trained` takes models of other runs instead.
"""

import hashlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]

from benchmarks.merge import by_hand  # noqa: E402  scripts are installed nowhere
from benchmarks.merge.chats import Chat, chats  # noqa: E402
from benchmarks.merge.models import Models, Strategy, parser  # noqa: E402
from benchmarks.stage_runs import with_spread  # noqa: E402

QUESTIONS = 40
ANSWER_TOKENS = 48
METHODS: Mapping[str, Callable[[by_hand.Weights], by_hand.Weights]] = {
    "DARE, .5 dropped": lambda vector: by_hand.dropped(vector, 0.5),
    "DARE, .9 dropped": lambda vector: by_hand.dropped(vector, 0.9),
    "TIES, 20 % kept": lambda vector: by_hand.trimmed(vector, 0.2),
}
"""Other ways to add a difference, which the product does not have."""
Figures = dict[str, float]


def measured(models: Models, name: str, folder: Path) -> Figures:
    """Ask a model questions, unless the figures are saved."""
    file = models.options.questions
    questions = read_chats(file) if file else chats("az", QUESTIONS, held_out=True)
    asked = hashlib.sha256(json.dumps(questions).encode()).hexdigest()
    settings = {"model": str(folder.resolve()), "questions": asked, "tokens": ANSWER_TOKENS}
    return models.runs.saved(f"asked-{name}", settings, lambda: ask(folder, questions))


def read_chats(file: Path) -> list[Chat]:
    """Questions and answers of a file of JSON lines with `messages`."""
    rows = [json.loads(line)["messages"] for line in file.read_text(encoding="utf-8").splitlines()]
    return [{"prompt": asked["content"], "response": answer["content"]} for asked, answer in rows]


def ask(folder: Path, questions: Sequence[Chat]) -> Figures:
    """Return shares of answers that ended and are right, and bits per byte of the right answers."""
    from anadil.evaluate.generate import GenerationPrompt, generate_texts
    from anadil.evaluate.models import BATCH_TOKENS, CandidateModel, load_for_scoring, open_model
    from anadil.model.chat_ids import chat_ids
    from anadil.model.load import encode_texts

    candidate, model = open_model("finetuned", folder), load_for_scoring(folder, "finetuned")
    prompts = [GenerationPrompt(text=each["prompt"], kind="answer", chat=True) for each in questions]
    loaded = CandidateModel(
        candidate=candidate, load=lambda: model, context=512, stride=256, batch_tokens=BATCH_TOKENS["cpu"]
    )
    texts = generate_texts(
        loaded.decoder(), candidate.tokenizer, prompts,
        max_new_tokens=ANSWER_TOKENS, seed=0, name=folder.name, modes=("greedy",),
    )  # fmt: skip
    answers = [each["response"] for each in questions]
    turns = [[{"role": "user", "content": each["prompt"]}] for each in questions]
    ids = [tuple(chat_ids(candidate.tokenizer, one, add_generation_prompt=True)) for one in turns]
    nats = loaded.answer_nats(ids, [tuple(each) for each in encode_texts(candidate.tokenizer, answers)])
    from anadil.text.metrics import bits_per_byte

    return {
        "ended": statistics.fmean(each.ended and bool(each.text.strip()) for each in texts),
        "exact": statistics.fmean(
            each.text.strip() == answer for each, answer in zip(texts, answers, strict=True)
        ),
        "bits": bits_per_byte(float(nats.sum()), sum(len(answer.encode()) for answer in answers)),
        "texts": [each.text for each in texts],
    }  # type: ignore[dict-item]


def with_vector(models: Models, name: str, model: Path, tokenizer: Path, settings: Mapping[str, Any]) -> Path:
    """Merge a trained model and the pair's difference by the stage."""
    pair = {"model": str(models.runs.work / "chat/merged"), "minus": str(models.minus()), "weight": 1.0}
    return models.merged(f"{name}-chat", model, tokenizer, settings, {"add": [pair]})


def by_method(models: Models, name: str, change: Callable[[by_hand.Weights], by_hand.Weights]) -> Path:
    """Merge the first extended model and a changed difference in plain torch."""
    from shutil import copytree, ignore_patterns

    from safetensors.torch import save_file

    adapted, merged = models.adapted("extend", 0), models.runs.work / "extend-0-chat"
    folder = models.runs.work / f"method-{name.replace(' ', '-').replace('%', 'percent').replace(',', '')}"
    if not folder.exists():
        pair = by_hand.weights(models.runs.work / "chat/merged"), by_hand.weights(models.minus())
        vector = by_hand.carried(
            change(by_hand.difference(*pair)), by_hand.sources(models.tokenizer), difference=True
        )
        # The template is the merged model's; its weights are replaced.
        partial = folder.with_suffix(".partial")
        copytree(merged, partial, ignore=ignore_patterns("*.safetensors"), dirs_exist_ok=True)
        result = by_hand.added(by_hand.weights(adapted), vector)
        save_file(result, partial / "model.safetensors", metadata={"format": "pt"})
        partial.rename(folder)
    return folder


def table(rows: Mapping[str, list[Figures]]) -> Iterator[str]:
    """Yield the figures of each row, over seeds."""
    yield "| model | ended, in the chat format | right word for word | held-out answers, bits per byte |"
    yield "|---|---:|---:|---:|"
    for name, seeds in rows.items():
        cells = [with_spread([100 * each[key] for each in seeds], 0) + " %" for key in ("ended", "exact")]
        yield f"| {name} | {' | '.join(cells)} | {with_spread([each['bits'] for each in seeds])} |"


def trained_model(text: str) -> tuple[str, Path, Path]:
    """Split NAME=MODEL,TOKENIZER."""
    name, _, places = text.partition("=")
    model, tokenizer = places.split(",")
    if name in ("", "base", "chat"):
        raise ValueError(name)
    return name, Path(model), Path(tokenizer)


def main() -> None:
    """Print the tables."""
    arguments = parser((__doc__ or "").splitlines()[0])
    arguments.add_argument("--methods", action="store_true", help="also other ways to add the difference")
    arguments.add_argument(
        "--trained",
        nargs="+",
        type=trained_model,
        metavar="NAME=MODEL,TOKENIZER",
        help="models of other runs",
    )
    arguments.add_argument("--language", default="az", help="of these models")
    arguments.add_argument("--questions", type=Path, help="default: made of sentences in Azerbaijani")
    options = arguments.parse_args()
    models = Models.of(options)
    rows: dict[str, list[Figures]] = {"base": [measured(models, "base", models.base)]}
    chat = models.finetuned("chat", models.minus(), "en")
    rows["base, English chats"] = [measured(models, "chat", chat)]
    if options.trained:
        for name, model, tokenizer in options.trained:
            settings = {**models.settings("base", 0), "language": options.language}
            rows[name] = [measured(models, name, model)]
            merged = with_vector(models, name, model, tokenizer, settings)
            rows[f"{name}, chat vector"] = [measured(models, f"{name}-chat", merged)]
        print("\n".join(table(rows)))
        return
    counts: dict[Strategy, int] = {"base": options.own_seeds, "extend": options.seeds}
    for strategy, count in counts.items():
        tokenizer = models.runs.work / f"tokenizer-{strategy}"
        title = "own vocabulary" if strategy == "base" else "extended vocabulary"
        trained = [(f"{strategy}-{seed}", models.adapted(strategy, seed)) for seed in range(count)]
        rows[title] = [measured(models, name, folder) for name, folder in trained]
        rows[f"{title}, chat vector"] = [
            measured(
                models,
                f"{name}-chat",
                with_vector(models, name, folder, tokenizer, models.settings(strategy, seed)),
            )
            for seed, (name, folder) in enumerate(trained)
        ]
    taught = models.finetuned("sft-az", models.adapted("extend", 0), "az")
    rows["extended vocabulary, Azerbaijani chats"] = [measured(models, "sft-az", taught)]
    if options.methods:
        for name, change in METHODS.items():
            rows[name] = [measured(models, name.replace(" ", "-"), by_method(models, name, change))]
    print("\n".join(table(rows)))
    before, after = (
        rows["extended vocabulary"][0]["bits"],
        rows["extended vocabulary, chat vector"][0]["bits"],
    )
    gain = before - rows["extended vocabulary, Azerbaijani chats"][0]["bits"]
    print(f"\nGain on held-out answers, of that by Azerbaijani chats (seed 0): {(before - after) / gain:.2f}")


if __name__ == "__main__":
    main()
