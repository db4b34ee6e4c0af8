"""Prompts to tokens and prompts to answers, without a model.

The answer is a fixed function of the prompt: whoever knows the prompt knows the right text, so a
router that mixes up two KV handoffs is caught by reading. Some characters come as two tokens, the
first without any text, as byte-level tokenizers do.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

_CHARACTERS_PER_TOKEN = 4
_FIRST_ID = 1000
_WORDS = (
    " narwhals", " swim", " under", " the", " northern", " ice", " and", " listen", " for", " cracks",
    ",", " because", " breathing", " holes", " are", " rare", " in", " winter", ".", " Their",
    " tusk", " is", " a", " tooth", " that", " grows", " through", " one", " lip", ";",
    " sailors", " once", " sold", " it", " as", " unicorn", " horn", " to", " kings", "\n",
    " Grœnland", " fjörðr", " 海", " narval", " кит", " 🐋", " \"deep\"", " dive", " of", " 1500",
    " metres", " lasts", " 25", " minutes", " then", " they", " rest", " at", " breath", " naïve",
    " krill", " cod", " halibut",
)  # fmt: skip
_HALF_EVERY = 17
_HALF_ID = 17
_WHOLE_ID = 18
_WHOLE_TEXT = "é"
_WRONG = 0x5BD1E995


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token: its ID, its text (may be empty) and the text as JSON."""

    id: int
    text: str
    json: bytes


_VOCABULARY = tuple(Token(_FIRST_ID + index, word, orjson.dumps(word)) for index, word in enumerate(_WORDS))
_HALF = Token(_HALF_ID, "", b'""')
_WHOLE = Token(_WHOLE_ID, _WHOLE_TEXT, orjson.dumps(_WHOLE_TEXT))


def answer_token(seed: int, position: int) -> Token:
    """Token number `position` (from 0) of the answer whose prompt has this seed."""
    place = (seed + position) % _HALF_EVERY
    if place == 7:
        return _HALF
    if place == 8 and position:
        return _WHOLE
    return _VOCABULARY[(seed + 11 * position) % len(_VOCABULARY)]


def answer_text(seed: int, tokens: int) -> str:
    """The first `tokens` tokens of an answer as text."""
    return "".join(answer_token(seed, position).text for position in range(tokens))


def wrong_seed(seed: int) -> int:
    """The seed of what an engine says when it computes over somebody else's KV blocks."""
    return seed ^ _WRONG


@dataclass(frozen=True, slots=True)
class Prompt:
    """A counted prompt. `seed` stands for its content; `text` is None when it came as token IDs."""

    count: int
    seed: int
    text: str | None
    given_ids: tuple[int, ...] = ()

    def ids(self) -> list[int]:
        """The prompt's token IDs: made up from pieces of its text, or those given."""
        if self.text is None:
            return list(self.given_ids)
        size = _CHARACTERS_PER_TOKEN
        pieces = (self.text[at : at + size] for at in range(0, len(self.text), size))
        return [_FIRST_ID + zlib.crc32(piece.encode("utf-8", "replace")) % 30000 for piece in pieces]


def text_prompt(text: str) -> Prompt:
    count = max(1, -(-len(text) // _CHARACTERS_PER_TOKEN))
    return Prompt(count, zlib.crc32(text.encode("utf-8", "replace")), text or " ")


def token_prompt(ids: Sequence[int]) -> Prompt:
    return Prompt(len(ids), zlib.crc32(repr(list(ids)).encode()), None, tuple(ids))
