"""Count a corpus as the stage does, and merge: `stage.py FOLDER WORKERS SIZE`; prints the seconds of both."""

import json
import sys
import time
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.text.cut_patterns import LLAMA_3_REGEX
from anadil.tokenizer.bpe import train_vocabulary
from anadil.tokenizer.corpus_counts import corpus_counts


def main() -> None:
    """Run it."""
    folder, workers, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    cutter = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(LLAMA_3_REGEX), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    cutter.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    recipe = Recipe.model_validate({"tokenizer": {"workers": workers}})
    job = Job(
        recipe=recipe, inputs={"corpus": folder / "corpus"}, out=folder, work=folder / "work", base_cache=folder
    )  # fmt: skip
    times = [time.monotonic()]
    counts = corpus_counts(job, cutter).counts
    times.append(time.monotonic())
    train_vocabulary(counts, size, 2)
    times.append(time.monotonic())
    print(json.dumps([times[1] - times[0], times[2] - times[1]]))


if __name__ == "__main__":  # also in the processes that it starts
    main()
