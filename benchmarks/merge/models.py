"""Models that the benchmarks of merging share: a base that learnt Azerbaijani alone, once a seed and tokenizer.

All that is made lies in one directory. Finished artifacts are reused, so that a run that was killed goes on.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

sys.path[:0] = [str(Path(__file__).parents[2])]

from benchmarks.merge.chats import chats  # noqa: E402
from benchmarks.stage_runs import NEWS, StageRuns, documents, read_texts, write_lines  # noqa: E402

HELD_OUT_EVERY = 16
"""One document of so many is scored and not trained on."""
NEWS_EVERY = 13
"""One piece of English news of so many is scored: half of the English text."""
LONGEST_HELD_OUT = 1_000
"""Characters of a held-out document that training text is compared with."""
LONGEST_SCORED = 800
"""Those of them that are scored, so that a CPU scores many documents."""
SCORED = 48
"""Documents of a language that are scored."""
LANGUAGES = ("az", "en")
MINUS_STEPS = 1
MINUS_LR = 1e-4
FINETUNE: Mapping[str, Any] = {"trains": "all", "lr": 1e-4, "batch_size": 8, "heldout_fraction": 0.05}
Strategy = Literal["extend", "base"]


def parser(purpose: str) -> argparse.ArgumentParser:
    """The command line that the benchmarks share; sizes are those of two CPUs and an hour."""
    arguments = argparse.ArgumentParser(description=purpose)
    arguments.add_argument("--base", type=Path, required=True, help="directory of the base model")
    arguments.add_argument("--work", type=Path, default=Path("merge"), help="default: %(default)s")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument(
        "--own-seeds", type=int, default=1, help="of models with the base's own vocabulary"
    )
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--batch", type=int, default=1, help="sequences of a step")
    arguments.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    arguments.add_argument("--lr", type=float, default=1.5e-4)
    arguments.add_argument(
        "--precision", default="auto", help="of trainings; CPUs with AVX-512 BF16 are twice as fast with bf16"
    )
    arguments.add_argument(
        "--chats", type=int, default=96, help="chats that teach a model to answer, a quarter of each kind"
    )
    arguments.add_argument("--chat-epochs", type=int, default=1, help="passes over them")
    return arguments


def write_texts(folder: Path) -> None:
    """Write training text, and held-out text by language, unless it is there."""
    if (folder / "scored.en.jsonl").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    az, en = documents("az"), documents("en")
    is_news = [any(name in file for name in NEWS) for file, _ in en]
    pages = [text for (_, text), news in zip(en, is_news, strict=True) if not news]
    news = [text for (_, text), each in zip(en, is_news, strict=True) if each]
    texts = {
        "web": [text for at, (_, text) in enumerate(az) if at % HELD_OUT_EVERY],
        "english": [text for at, text in enumerate(pages) if at % HELD_OUT_EVERY][:40],
        "held.az": [text for _, text in az[::HELD_OUT_EVERY]],
        "held.en": pages[::HELD_OUT_EVERY] + news[::NEWS_EVERY],
    }
    for name in ("held.az", "held.en"):
        texts[f"scored.{name[-2:]}"] = [text[:LONGEST_SCORED] for text in texts[name]]
        texts[name] = [text[:LONGEST_HELD_OUT] for text in texts[name]]
    for name, each in texts.items():
        write_lines(folder / f"{name}.jsonl", [{"text": text} for text in each])


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The base and what is trained of it, in a directory."""

    options: argparse.Namespace
    runs: StageRuns

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Models":
        """Prepare the directory."""
        # The figures are those of a CPU, whatever the machine has.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        work = options.work.resolve()
        write_texts(work / "texts")
        return cls(options=options, runs=StageRuns(work))

    @property
    def base(self) -> Path:
        """Directory of the base."""
        base: Path = self.options.base.resolve()
        return base

    @property
    def tokenizer(self) -> Path:
        """Artifact of the extended tokenizer, which holds the map of its rows."""
        return self.runs.work / "tokenizer-extend"

    def heldout(self, *, tuning: bool) -> dict[str, list[str]]:
        """Held-out text by language: English that `auto` chooses by, or all that it does not see."""
        from anadil.artifacts.scored_text import tuning_part
        from anadil.text.corpus import Document

        texts = {
            language: read_texts(self.runs.work / f"texts/scored.{language}.jsonl") for language in LANGUAGES
        }
        english = [Document(id="", text=text, source="", url="", lang="en") for text in texts["en"]]
        chosen = [each.text for each in tuning_part(english)[0 if tuning else 1]]
        # Azerbaijani is chosen by in the corpus's own held-out part.
        return {"en": chosen} if tuning else {"az": spread(texts["az"]), "en": spread(chosen)}

    def settings(self, strategy: Strategy, seed: int, **more: Any) -> dict[str, Any]:
        """Return the recipe of a training on Azerbaijani text, with other sections in place of its own."""
        options, texts = self.options, self.runs.work / "texts"
        return {
            "language": "az",
            "seed": seed,
            "base": {"model": str(self.base)},
            "clean": {"inputs": [str(texts / "web.jsonl")]},
            "tokenizer": {"strategies": [strategy], "vocab_sizes": "auto", "keep": ["en"]},
            "pretrain": self.pretrain(options.steps, options.lr),
            # `clean` leaves out training text that holds this.
            "evaluate": {
                "heldout": [str(texts / "held.az.jsonl")],
                "retained": [str(texts / "held.en.jsonl")],
            },
            **more,
        }

    def pretrain(self, steps: int, lr: float) -> dict[str, Any]:
        """Return the section of a training of all weights."""
        options = self.options
        return {
            "phases": [{"trains": "all", "steps": steps, "lr": lr}],
            # With a step of a few hundred tokens, 5e-4 after two steps of warm-up doubled the loss.
            "warmup_fraction": 0.2,
            "log_every": 5,
            "batch_size": options.batch,
            "precision": options.precision,
            "micro_batch_size": options.batch,
            "sequence_length": options.length,
            "checkpoint_every": steps,
            "validate_every": 0,
            "faults": {"burn_in": "never"},
        }

    def adapted(self, strategy: Strategy, seed: int) -> Path:
        """Train the base on Azerbaijani text alone."""
        name = f"{strategy}-{seed}"
        return self.trained(name, self.settings(strategy, seed), f"-{strategy}", "")

    def trained(self, name: str, settings: Mapping[str, Any], tokenizer: str, corpus: str) -> Path:
        """Run the stages up to pretrain; artifacts of one tokenizer or corpus are shared by what their names end in."""
        runs, model = self.runs, self.runs.work / f"model-{name}"
        if (model / "manifest.json").is_file() and runs.is_recipe(name, settings):
            return model  # four stages that reuse all take 20 CPU seconds
        recipe = runs.recipe(name, settings)
        text = runs.stage("clean", recipe, runs.work / f"corpus{corpus}")
        vocabulary = runs.stage(
            "tokenizer", recipe, runs.work / f"tokenizer{tokenizer}{corpus}", "--corpus", text
        )
        inputs = ["--corpus", text, "--tokenizer", vocabulary]
        tokens = runs.stage("encode", recipe, runs.work / f"tokens{tokenizer}{corpus}", *inputs)
        inputs = ["--tokens", tokens, "--tokenizer", vocabulary]
        return Path(runs.stage("pretrain", recipe, model, *inputs))

    def merged(
        self,
        name: str,
        model: Path,
        tokenizer: Path,
        settings: Mapping[str, Any],
        merge: Mapping[str, Any],
    ) -> Path:
        """Merge a trained model as a section of the recipe says; the stage reads what `heldout` gives."""
        work = self.runs.work
        az, en = (str(work / f"texts/scored.{language}.jsonl") for language in LANGUAGES)
        scored = {**settings.get("evaluate", {}), "heldout": [az], "retained": [en]}
        recipe = self.runs.recipe(name, {**settings, "evaluate": scored, "merge": merge})
        inputs = ["--model", str(model), "--tokenizer", str(tokenizer)]
        if "auto" in str(merge):
            inputs += ["--corpus", str(work / "corpus")]
        return Path(self.runs.stage("merge", recipe, work / name, *inputs))

    def minus(self) -> Path:
        """Train the base on a step of English text, so that the pair's smaller end is the artifact of a stage."""
        english = {"clean": {"inputs": [str(self.runs.work / "texts/english.jsonl")]}, "language": "en"}
        settings = self.settings("base", 0, pretrain=self.pretrain(MINUS_STEPS, MINUS_LR), **english)
        return self.trained("minus", settings, "-base", "-english")

    def finetuned(self, name: str, model: Path, language: str) -> Path:
        """Teach a model to answer in a line, all weights, by chats of a language."""
        file = self.runs.work / f"texts/chats.{language}.jsonl"
        write_lines(file, chats(language, self.options.chats, held_out=False))
        finetune = {**FINETUNE, "epochs": self.options.chat_epochs, "inputs": [str(file)]}
        settings = self.settings("base", 0, finetune=finetune)
        recipe, out = self.runs.recipe(name, settings), self.runs.work / name
        return Path(self.runs.stage("finetune", recipe, out, "--model", str(model))) / "merged"


def spread(texts: Sequence[str]) -> list[str]:
    """Choose `SCORED` texts, or all where there are fewer, spread over the whole."""
    return list(texts[:: max(1, len(texts) // SCORED)][:SCORED])


def main() -> None:
    """Train all models; a run that was killed goes on where it was."""
    arguments = parser((__doc__ or "").splitlines()[0])
    arguments.add_argument(
        "--jobs", type=int, default=1, help="trainings side by side, a thread each is best"
    )
    options = arguments.parse_args()
    models = Models.of(options)
    with ThreadPoolExecutor(options.jobs) as pool:
        trainings = [pool.submit(models.adapted, "extend", seed) for seed in range(options.seeds)]
        trainings += [pool.submit(lambda: models.finetuned("chat", models.minus(), "en"))]
        trainings += [pool.submit(models.adapted, "base", seed) for seed in range(options.own_seeds)]
        for each in trainings:
            print(each.result(), flush=True)


if __name__ == "__main__":
    main()
