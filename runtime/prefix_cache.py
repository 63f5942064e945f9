"""Sharing of computed pages between sequences with the same beginning."""

from collections.abc import Iterator

from inferc.runtime.block_manager import BlockId, BlockManager, chain_key
from inferc.runtime.request import Sequence


class PrefixCache:
    """Finds and publishes full pages by the chained hash of all tokens up to their end."""

    def __init__(self, blocks: BlockManager, enabled: bool) -> None:
        self.enabled = enabled
        self._blocks = blocks

    def match(self, sequence: Sequence) -> list[BlockId]:
        """Pages that hold the beginning of `sequence`, never its last known token.

        That token must run in any case, for its logits are what is wanted.
        """
        return self._blocks.match(self._shareable_keys(sequence)) if self.enabled else []

    def publish(self, sequence: Sequence) -> None:
        """Make pages that have become full shareable. Only for contents already computed."""
        if not self.enabled:
            return
        full = sequence.computed_tokens // self._blocks.page_tokens
        for index in range(sequence.published_blocks, full):
            self._blocks.publish(sequence.blocks[index], self._key(sequence, index))
        sequence.published_blocks = full

    def _shareable_keys(self, sequence: Sequence) -> Iterator[bytes]:
        for index in range((len(sequence.token_ids) - 1) // self._blocks.page_tokens):
            yield self._key(sequence, index)

    def _key(self, sequence: Sequence, index: int) -> bytes:
        """Key of a full page; those of a sequence are computed once, in order."""
        keys, page_tokens = sequence.block_keys, self._blocks.page_tokens
        while len(keys) <= index:
            first = len(keys) * page_tokens
            parent = keys[-1] if keys else b""
            keys.append(chain_key(parent, sequence.token_ids[first : first + page_tokens]))
        return keys[index]
