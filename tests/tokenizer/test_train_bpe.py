import json

from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from anadil.tokenizer.extend_bpe import continue_merges
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.train_bpe import train_vocabulary
from tests.tokenizer.conftest import SENTENCES

TEXTS = [f"{one} {two}" for one in SENTENCES for two in SENTENCES]


def test_training_on_the_counts_gives_the_merges_of_training_on_the_text(tiny: Tokenizer) -> None:
    on_text = Tokenizer(models.BPE())
    on_text.pre_tokenizer = tiny.pre_tokenizer
    trainer = BpeTrainer(vocab_size=700, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    on_text.train_from_iterator(TEXTS, trainer)

    trained = train_vocabulary(count_texts(tiny, TEXTS), 700, min_frequency=1)

    expected = json.loads(on_text.to_str())["model"]
    vocab, merges = trained.cut(700)
    assert [list(pair) for pair in merges] == expected["merges"]
    assert vocab == expected["vocab"]


def test_a_smaller_vocabulary_is_the_start_of_a_larger_one(tiny: Tokenizer) -> None:
    counts = count_texts(tiny, TEXTS)

    large = train_vocabulary(counts, 600, min_frequency=2)
    small = train_vocabulary(counts, 400, min_frequency=2)

    assert large.cut(400) == small.cut(400)


def test_extending_a_bare_alphabet_is_training(tiny: Tokenizer) -> None:
    counts = count_texts(tiny, TEXTS)
    trained = train_vocabulary(counts, 700, min_frequency=2)
    bare = Tokenizer(
        models.BPE(vocab={symbol: index for index, symbol in enumerate(trained.alphabet)}, merges=[])
    )

    merges = continue_merges(bare, counts, 700 - 256, min_frequency=2)

    assert merges == trained.merges
