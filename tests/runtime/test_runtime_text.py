"""Streaming text: never half a character, never past a stop string, whatever the tokens."""

import itertools
import random
import re

import pytest
from runtime_tokenizers import byte_fallback, byte_ids, byte_level, byte_symbols
from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import WordLevel

from inferc.runtime.artifact import TokenFacts
from inferc.runtime.detokenizer import Detokenizer
from inferc.runtime.stopping import StopStrings
from inferc.runtime.tokenizer import TextTokenizer

REPLACEMENT = "\ufffd"
TEXTS = [
    "plain words, twice.",
    "👩‍👩‍👧‍👦 family, 🇩🇪 flag, 👍🏽 skin",
    "日本語とカタカナ、한국어",
    "e\u0301 a\u0308 n\u0303 \u0915\u094d\u0937",
    "mixed é日👍x\u0301 end",
    "\u0000\x7f\u0080\u07ff\u0800\uffff\U00010000\U0010ffff",
    "  two  spaces\n\tand a tab ",
]


def stream(tokenizer: TextTokenizer, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(tokenizer.token_bytes, prompt or [])
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("text", TEXTS)
def test_every_split_gives_whole_characters(make, text: str) -> None:
    """A token a byte, so that every split of every character occurs; the prompt ends anywhere."""
    tokenizer = make()
    ids = byte_ids(tokenizer, text)
    for at in range(len(ids)):
        pieces = stream(tokenizer, ids[at:], ids[:at])
        assert not any(REPLACEMENT in piece for piece in pieces), (at, pieces)
        joined = "".join(pieces)
        assert text.endswith(joined)
        whole = text.encode()[:at].decode(errors="ignore")
        stripped = make is byte_fallback and at == 0 and text.startswith(" ")
        assert whole + joined == (text[1:] if stripped else text)


def test_tokens_that_cut_characters_anywhere() -> None:
    """Tokens of one to five bytes, cut without regard to characters, against `decode`."""
    rng = random.Random(0)
    for text in TEXTS:
        symbols = byte_symbols(text)
        merges = sorted({(symbols[i : i + 1], symbols[i + 1]) for i in range(len(symbols) - 1)})
        merges += sorted(
            {
                (symbols[i : i + size], symbols[i + size : i + 2 * size])
                for size in (2,)
                for i in range(len(symbols) - 2 * size + 1)
            }
        )
        tokenizer = byte_level(tuple(merges))
        for _ in range(30):
            ids, rest = [], symbols
            while rest:
                size = min(rng.choice((1, 2, 4)), len(rest))
                token = tokenizer._tokenizer.token_to_id(rest[:size])
                size = size if token is not None else 1
                ids.append(tokenizer._tokenizer.token_to_id(rest[:size]))
                rest = rest[size:]
            pieces = stream(tokenizer, ids)
            assert "".join(pieces) == text == tokenizer.decode(ids)
            assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_invalid_bytes_end_and_do_not_swallow_text(make) -> None:
    tokenizer = make()
    good = byte_ids(tokenizer, "日本")
    lead, tail = byte_ids(tokenizer, "日")[0], byte_ids(tokenizer, "日")[1]
    for bad in ([lead] * 9, [tail] * 9, [lead, lead, tail, tail, tail, tail]):
        pieces = stream(tokenizer, bad + good)
        joined = "".join(pieces)
        assert joined.endswith("日本"), joined
        assert REPLACEMENT in joined and "日本" not in joined[:-2]
    # Cut off inside a character: it shows only at the very end.
    pieces = stream(tokenizer, good + good[:2])
    assert "".join(pieces[:-1]) == "日本" and set(pieces[-1]) == {REPLACEMENT}


def test_a_text_of_replacement_characters_streams_on() -> None:
    tokenizer = byte_level()
    ids = byte_ids(tokenizer, REPLACEMENT * 10)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == REPLACEMENT * 10
    assert sum(map(len, pieces[:-1])) == 10


def test_the_space_of_the_first_token_depends_on_the_prompt() -> None:
    tokenizer = byte_fallback()
    cat = tokenizer._tokenizer.token_to_id("▁cat")
    assert "".join(stream(tokenizer, [cat, cat])) == "cat cat"
    prompt = [tokenizer._tokenizer.token_to_id("▁a")]
    assert "".join(stream(tokenizer, [cat, cat], prompt)) == " cat cat"


def test_special_tokens_are_dropped_or_kept() -> None:
    tokenizer = byte_level()
    ids = [*byte_ids(tokenizer, "a"), *tokenizer.facts.eos, *byte_ids(tokenizer, "é")]
    dropping = Detokenizer(tokenizer.token_bytes)
    assert "".join(map(dropping.push, ids)) == "aé" == tokenizer.decode(ids)
    keeping = Detokenizer(tokenizer.token_bytes, keep_special=True)
    assert "".join(map(keeping.push, ids)) == "a</s>é" == tokenizer.decode(ids, False)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.Metaspace(),
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.Replace(Regex("_+"), " ")]),
    ],
)
def test_other_decoders_stream_what_decode_gives(decoder: decoders.Decoder) -> None:
    words = ["▁the", "cat", "##s", "▁sat", "on</w>", "_mat"]
    inner = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, "cat"))
    inner.decoder = decoder
    tokenizer = TextTokenizer(inner, TokenFacts((), None, None, False))
    for order in itertools.permutations(range(6), 3):
        assert "".join(stream(tokenizer, list(order))) == tokenizer.decode(order)


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["STOP"], ["a S", "T", "OP b"], "a "),
        (["STOP"], ["a ST", "ART", " b"], "a START b"),
        (["aab"], ["aa", "aa", "b!"], "aa"),
        (["\n\n", "###"], ["x\n", "#", "\n", "\ny"], "x\n#"),
        (["b", "abc"], ["a", "b", "c"], "a"),
        (["xyz"], ["x", "y"], "xy"),
        (["é"], ["e", "\u0301é"], "e\u0301"),
        ([], ["x", "y"], "xy"),
    ],
)
def test_stop_strings(stops: list[str], pieces: list[str], expected: str) -> None:
    assert _screen(stops, pieces) == expected


def test_stop_strings_by_brute_force() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        text = "".join(rng.choices("ab", k=rng.randint(0, 12)))
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        cuts = sorted(rng.choices(range(len(text) + 1), k=3))
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        # A stop string is acted on when its last letter arrives, so the earliest end decides.
        ends = [m.end() for stop in stops for m in [re.search(re.escape(stop), text)] if m]
        expected = text
        if ends:
            shown = text[: next(cut for cut in [*cuts, len(text)] if cut >= min(ends))]
            expected = shown[: min(at for at in map(shown.find, stops) if at >= 0)]
        assert _screen(stops, pieces) == expected, (text, stops, pieces)


def _screen(stops: list[str], pieces: list[str]) -> str:
    screen, shown = StopStrings(stops), ""
    for piece in pieces:
        screened = screen.push(piece)
        shown += screened.text
        if screened.stopped:
            return shown
    return shown + screen.flush()


def test_bos_exactly_once() -> None:
    tokenizer = byte_level()
    bos = tokenizer.facts.bos
    plain = tokenizer.encode("hi")
    assert plain[0] == bos and plain.count(bos) == 1
    assert tokenizer.encode("<s>hi") == plain
    assert tokenizer.encode_rendered("<s><s>hi") == plain
    assert tokenizer.encode_rendered("hi") == plain


def test_known_ids() -> None:
    tokenizer = byte_level()
    count = tokenizer._tokenizer.get_vocab_size()
    known = tokenizer.known_ids(count + 61)
    assert known[:count].all() and not known[count:].any()
    assert tokenizer.known_ids(count - 10).all()
