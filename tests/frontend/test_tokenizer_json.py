"""Merges are written in the form that loads cheapest, where that form exists."""

from __future__ import annotations

import json

from tokenizers import Tokenizer

from inferc.frontend.tokenizer_json import to_text


def document(vocab: list[str], merges: list[list[str]]) -> dict[str, object]:
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(vocab)}, "merges": merges}
    return {"version": "1.0", "model": model, "added_tokens": []}


def test_merges_without_spaces_become_strings_and_mean_the_same() -> None:
    text = to_text(document(["a", "b", "\n", "ab", "\n\n"], [["a", "b"], ["\n", "\n"]]))
    assert json.loads(text)["model"]["merges"] == ["a b", "\n \n"]
    assert Tokenizer.from_str(text).encode("ab\n\na").tokens == ["ab", "\n\n", "a"]


def test_merges_with_a_space_stay_pairs() -> None:
    merges = [["a", "b"], [" ", "a"]]
    text = to_text(document(["a", "b", " ", "ab", " a"], merges))
    assert json.loads(text)["model"]["merges"] == merges
    assert Tokenizer.from_str(text).encode(" a").tokens == [" a"]
