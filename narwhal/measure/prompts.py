"""Prompts that no engine has seen before: a cached prefix would make a prefill look fast."""

from __future__ import annotations

import random

_WORDS = (
    "about", "after", "again", "air", "animal", "answer", "because", "below", "between", "book", "both",
    "boy", "build", "carry", "change", "city", "close", "country", "cross", "earth", "every", "example",
    "farm", "father", "food", "form", "great", "group", "grow", "hand", "hard", "head", "high", "house",
    "idea", "important", "inside", "island", "kind", "land", "large", "learn", "letter", "life", "light",
    "line", "list", "mountain", "mother", "move", "music", "near", "night", "number", "often", "open",
    "paper", "part", "people", "picture", "place", "plant", "point", "question", "river", "room", "school",
    "second", "sentence", "side", "small", "sound", "spell", "state", "still", "stop", "story", "study",
    "tree", "turn", "under", "until", "walk", "watch", "water", "white", "while", "word", "work", "world",
)  # fmt: skip


def fresh_prompt(seed: str, words: int) -> str:
    """That many words in an order of the seed's own: the same seed gives the same prompt."""
    source = random.Random(seed)
    return " ".join(source.choices(_WORDS, k=max(1, words)))
