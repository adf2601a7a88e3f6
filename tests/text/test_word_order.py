import math
import random

import numpy as np
import pytest

from anadil.text.ngram_profile import letters_of, pack
from anadil.text.word_order import MIN_PAIRS, NUM_CLASSES, SIZE, WordOrder, words_of
from tests.kit.constructed import documents


@pytest.fixture(scope="module")
def order() -> WordOrder:
    return WordOrder.learn(words_of(letters_of(text)) for text in documents(200))


def test_running_text_has_neighbours_that_chance_has_not_and_shuffled_text_has_none(order: WordOrder) -> None:
    draw = random.Random(1)
    own = [letters_of(text).split() for text in documents(60, seed=1)]

    running, shuffled = (
        [order.score(" ".join(words)) for words in texts]
        for texts in (own, [draw.sample(words, len(words)) for words in own])
    )

    assert min(running) > np.quantile(shuffled, 0.9)
    assert np.median(shuffled) < 0


def test_several_pieces_have_the_scores_that_each_has_alone(order: WordOrder) -> None:
    text = letters_of(" ".join(documents(40, seed=4)))
    pieces = ["", *(text[start : start + 300] for start in range(0, len(text) - 300, 300)), "bir"]

    together = order.scores(pieces)

    assert np.array_equal(together, [order.score(each) for each in pieces], equal_nan=True)
    assert len(set(together)) > 20


def test_words_that_the_sample_lacks_are_of_the_class_of_their_last_letters() -> None:
    draw = random.Random(1)

    def sentences(count: int) -> list[str]:
        """New words all the time, the ending of each told by the word before it."""
        ends = ["lar", "nda", "mek", "dir"] * count
        return [f"{''.join(draw.choices('bcdfgaeou', k=6))}{end}" for end in ends]

    order = WordOrder.learn(words_of(letters_of(" ".join(sentences(40)))) for _ in range(40))
    words = sentences(40)

    assert order.score(letters_of(" ".join(words))) > 1
    assert order.score(letters_of(" ".join(draw.sample(words, len(words))))) < 0


def test_too_few_neighbours_say_nothing(order: WordOrder) -> None:
    words = letters_of(" ".join(documents(1, seed=3))).split()

    assert math.isnan(order.score(""))
    assert math.isnan(order.score(" ".join(words[:MIN_PAIRS])))
    assert not math.isnan(order.score(" ".join(words[: 2 * MIN_PAIRS])))
    assert math.isnan(order.score(letters_of("日本 " * 99)))  # no word of a class


def test_a_packed_order_is_the_same_and_what_is_none_is_refused(order: WordOrder) -> None:
    packed = order.pack()
    again = WordOrder.unpack(packed)

    assert (again.numbers == order.numbers).all()
    assert (again.associations == order.associations).all()
    assert again.pack() == packed
    assert order.numbers.max() == NUM_CLASSES - 1
    with pytest.raises(ValueError, match=f"no table of n-grams: 3 bytes, not {SIZE}"):
        WordOrder.unpack(pack(b"abc"))


def test_a_sample_of_few_words_has_few_classes_and_of_none_no_order() -> None:
    few, none = WordOrder.learn([words_of(letters_of("bir iki üç bir iki"))]), WordOrder.learn([])

    assert few.numbers.max() < NUM_CLASSES - 1
    assert not none.numbers.any()
    assert math.isnan(none.score(letters_of("bir iki " * 20)))
