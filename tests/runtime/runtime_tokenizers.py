"""Small tokenizers made in place: one token a byte, the two ways decoders treat bytes."""

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from inferc.runtime.artifact import TokenFacts
from inferc.runtime.tokenizer import TextTokenizer

PIECES = ("▁", "▁a", "▁cat", "日", "語", "!", "\n")


def _specials(tokenizer: Tokenizer) -> TokenFacts:
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>", "<pad>")])
    ids = [tokenizer.token_to_id(token) for token in ("<s>", "</s>", "<pad>")]
    return TokenFacts(eos=(ids[1],), bos=ids[0], pad=ids[2], add_bos=True)


def byte_level(merges: tuple[tuple[str, str], ...] = ()) -> TextTokenizer:
    """GPT-2's kind: a byte is a printable character, any bytes may meet in a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(BPE(vocab, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TextTokenizer(tokenizer, _specials(tokenizer))


def byte_fallback() -> TextTokenizer:
    """Llama's kind: pieces with ▁ for a space, and <0xNN> for all that has no piece."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for piece in PIECES:
        vocab[piece] = len(vocab)
    tokenizer = Tokenizer(BPE(vocab, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return TextTokenizer(tokenizer, _specials(tokenizer))


def byte_ids(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Ids of a text, a token for each byte."""
    fallback = [tokenizer._tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()]
    if None not in fallback:
        return fallback
    return [tokenizer._tokenizer.token_to_id(symbol) for symbol in byte_symbols(text)]


def byte_symbols(text: str) -> str:
    """A text in GPT-2's alphabet, a character for each byte."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(piece for piece, _ in level.pre_tokenize_str(text))
