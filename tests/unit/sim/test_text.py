from __future__ import annotations

import orjson

from narwhal.sim.text import answer_text, answer_token, text_prompt, token_prompt, wrong_seed


def test_the_same_prompt_has_the_same_answer_and_another_prompt_another() -> None:
    one, other = text_prompt("one"), text_prompt("other")
    assert answer_text(one.seed, 20) == answer_text(text_prompt("one").seed, 20)
    assert answer_text(one.seed, 20) != answer_text(other.seed, 20)
    assert answer_text(one.seed, 20) != answer_text(wrong_seed(one.seed), 20)


def test_a_longer_answer_begins_with_the_shorter_one() -> None:
    seed = text_prompt("x").seed
    assert answer_text(seed, 50).startswith(answer_text(seed, 20))


def test_some_tokens_have_no_text_and_the_next_one_has_the_character() -> None:
    tokens = [answer_token(3, position) for position in range(40)]
    halves = [index for index, token in enumerate(tokens) if not token.text]
    assert halves
    assert all(tokens[index + 1].text == "é" for index in halves)
    assert all(orjson.loads(token.json) == token.text for token in tokens)


def test_prompts_are_counted_in_tokens() -> None:
    prompt = text_prompt("Hello my friend")
    assert prompt.count == len(prompt.ids()) == 4
    assert token_prompt([5, 6, 7]).count == 3
    assert token_prompt([5, 6, 7]).ids() == [5, 6, 7]
    assert token_prompt([5, 6, 7]).seed != token_prompt([5, 6, 8]).seed
