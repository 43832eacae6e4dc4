"""A seeded synthetic language: 48 made-up words under a second-order word table.

The next word depends on the last word and on the class of the one before it, with 3 % noise, so
that a small target learns it almost exactly, a good drafter follows the target, and a drafter
that lost its decoder layer or its aux hidden states can't. Nothing is read from disk.
"""

from __future__ import annotations

import random

NUM_WORDS = 48
NUM_CLASSES = 4
NOISE = 0.03
FIRST_CHOICE = 0.88


def _make_words(seed: int = 7) -> list[str]:
    rng = random.Random(seed)
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    words: list[str] = []
    while len(words) < NUM_WORDS:
        syllables = rng.choice([1, 2, 2, 3])
        stem = "".join(rng.choice(consonants) + rng.choice(vowels) for _ in range(syllables))
        word = stem + rng.choice(["", "n", "s", "r"])
        if len(word) > 2 and word not in words:
            words.append(word)
    return words


def _make_table(seed: int = 11) -> list[list[list[int]]]:
    """`table[last word][class of the word before]` holds the two words that may follow."""
    rng = random.Random(seed)
    return [[rng.sample(range(NUM_WORDS), 2) for _ in range(NUM_CLASSES)] for _ in range(NUM_WORDS)]


WORDS = _make_words()
TABLE = _make_table()


def text(num_sentences: int, seed: int) -> str:
    """Return `num_sentences` sentences of 5 to 9 words, four to a line."""
    rng = random.Random(seed)
    before, last = rng.randrange(NUM_WORDS), rng.randrange(NUM_WORDS)
    pieces: list[str] = []
    for index in range(num_sentences):
        sentence = []
        for _ in range(rng.randrange(5, 10)):
            first, second = TABLE[last][before % NUM_CLASSES]
            if rng.random() < NOISE:
                word = rng.randrange(NUM_WORDS)
            else:
                word = first if rng.random() < FIRST_CHOICE else second
            sentence.append(WORDS[word])
            before, last = last, word
        pieces.append(" ".join(sentence).capitalize() + ".")
        pieces.append("\n" if index % 4 == 3 else " ")
    return "".join(pieces)


def held_out_prompts(count: int, length: int = 48) -> list[str]:
    """Return `count` prompts of `length` bytes that no training sequence was cut from."""
    held_out = text(400, seed=777)
    return [held_out[i * 700 : i * 700 + length] for i in range(count)]
