"""Ownership of KV pages: reference counts, sharing by content, eviction. Integers only.

A block is a page of every cache at once. Each block is in exactly one state:

    free, blank      count 0, no key     taken first by `allocate`
    free, cached     count 0, key        still shareable; evicted in order of last use
    used, private    count 1, no key     being filled by one sequence
    used, shareable  count n, key        full and computed; holds exactly the prefix of its key
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NewType

from inferc.errors import InfercError

BlockId = NewType("BlockId", int)


class InvariantError(InfercError):
    """A bug in scheduling was found by a check; the message names block, count and users."""


def chain_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Key of a full block: its tokens and, through `parent`, all tokens before them."""
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


class BlockManager:
    """Hands out the pages `0 … total-1`."""

    def __init__(self, total: int, page_tokens: int) -> None:
        self.total = total
        self.page_tokens = page_tokens
        self._counts = [0] * total
        self._keys: list[bytes | None] = [None] * total
        self._by_key: dict[bytes, BlockId] = {}
        self._free: OrderedDict[BlockId, None] = OrderedDict.fromkeys(map(BlockId, range(total)))

    @property
    def free(self) -> int:
        """Blocks that `allocate` can give, cached ones included."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.page_tokens)

    def match(self, keys: Iterable[bytes]) -> list[BlockId]:
        """The longest run of shareable blocks for a chain of keys; changes nothing."""
        found: list[BlockId] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def free_among(self, blocks: Iterable[BlockId]) -> int:
        """How many of `blocks` are free, that is, would leave the free list when shared."""
        return sum(self._counts[block] == 0 for block in blocks)

    def sole_users(self, blocks: Iterable[BlockId]) -> int:
        """How many of `blocks` have one user, that is, would become free when released."""
        return sum(self._counts[block] == 1 for block in blocks)

    def share(self, blocks: Iterable[BlockId]) -> None:
        """Add a user to shareable blocks found by `match`."""
        for block in blocks:
            if self._counts[block] == 0:
                del self._free[block]
            self._counts[block] += 1

    def allocate(self, count: int) -> list[BlockId] | None:
        """Take blank blocks, evicting cached ones as needed; None (and no change) if too few."""
        if count > len(self._free):
            return None
        return [self._take() for _ in range(count)]

    def release(self, blocks: Sequence[BlockId]) -> None:
        """Drop a user of each block. Last blocks go first, so that prefixes are evicted last."""
        for block in reversed(blocks):
            self._counts[block] -= 1
            if self._counts[block] == 0:
                self._free[block] = None
                if self._keys[block] is None:
                    self._free.move_to_end(block, last=False)

    def publish(self, block: BlockId, key: bytes) -> None:
        """Make a full, computed block shareable. If another holds the content, stay private."""
        if key not in self._by_key:
            self._by_key[key] = block
            self._keys[block] = key

    def forget(self) -> None:
        """Empty the prefix cache; blocks in use stay in use."""
        for block in self._by_key.values():
            self._keys[block] = None
        self._by_key.clear()

    def check(self, tables: Iterable[Sequence[BlockId]]) -> None:
        """Raise unless counts equal users, free and used partition all, and keys are mutual."""
        users = Counter(block for table in tables for block in table)
        for block in map(BlockId, range(self.total)):
            count = self._counts[block]
            if count != users[block]:
                raise InvariantError(f"block {block}: count {count}, but {users[block]} users")
            if (count == 0) != (block in self._free):
                state = "missing from" if count == 0 else "in"
                raise InvariantError(f"block {block}: count {count}, but {state} the free list")
            key = self._keys[block]
            if key is not None and self._by_key.get(key) != block:
                raise InvariantError(f"block {block}: its key leads to {self._by_key.get(key)}")
        if len(self._by_key) != sum(key is not None for key in self._keys):
            raise InvariantError("the prefix cache lists a block that does not carry the key")

    def _take(self) -> BlockId:
        block, _ = self._free.popitem(last=False)
        key = self._keys[block]
        if key is not None:
            del self._by_key[key]
            self._keys[block] = None
        self._counts[block] = 1
        return block
