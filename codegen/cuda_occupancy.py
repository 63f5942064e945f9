"""What a multiprocessor of each architecture holds, and how many blocks of a kernel fit on one.

Limits: CUDA Programming Guide, "Compute Capabilities". Rounding: `cuda_occupancy.h` of the toolkit.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP_THREADS = 32
_KIB = 1024
_REGISTERS = 65536  # of a multiprocessor, and of a block, on every architecture here
_PARTITIONS = 4  # a warp's registers lie in one of them
_REGISTER_UNIT = 256  # registers of a warp are given out in these
_WARP_UNIT = 4
_SHARED_UNIT_BYTES = 128
RESERVED_SHARED_BYTES = 1024  # of every block, taken by the system


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one multiprocessor.

    Attributes:
        warps: resident at once.
        blocks: resident at once.
        shared_bytes: shared memory, with the largest carve-out from the cache.
        block_shared_bytes: most that one block may have, static and dynamic.
    """

    warps: int
    blocks: int
    shared_bytes: int
    block_shared_bytes: int


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(64, 32, 164 * _KIB, 163 * _KIB),
    "sm_86": Multiprocessor(48, 16, 100 * _KIB, 99 * _KIB),
    "sm_89": Multiprocessor(48, 24, 100 * _KIB, 99 * _KIB),
    "sm_90a": Multiprocessor(64, 32, 228 * _KIB, 227 * _KIB),
    "sm_100a": Multiprocessor(64, 32, 228 * _KIB, 227 * _KIB),
    "sm_120a": Multiprocessor(48, 24, 100 * _KIB, 99 * _KIB),
}


@dataclass(frozen=True)
class Occupancy:
    """How much of a multiprocessor a kernel fills.

    Attributes:
        blocks: resident blocks; 0: the kernel cannot be launched.
        warps: their warps.
        share: of the warps that could be resident.
        limit: what stops another block: `registers`, `shared memory`, `warps` or `blocks`.
    """

    blocks: int
    warps: int
    share: float
    limit: str


def occupancy(arch: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Blocks of `threads` on one multiprocessor.

    Args:
        arch: a key of `MULTIPROCESSORS`.
        threads: of a block.
        registers: of a thread.
        shared_bytes: of a block, static and dynamic, without what the system reserves.
    """
    limits = MULTIPROCESSORS[arch]
    warps = -(-threads // WARP_THREADS)
    allocated = _round_up(warps, _WARP_UNIT)
    per_warp = _round_up(max(registers, 1) * WARP_THREADS, _REGISTER_UNIT)
    warps_by_registers = _REGISTERS // _PARTITIONS // per_warp * _PARTITIONS
    per_block = _round_up(shared_bytes + RESERVED_SHARED_BYTES, _SHARED_UNIT_BYTES)
    fits = shared_bytes <= limits.block_shared_bytes
    bounds = {
        "registers": warps_by_registers // allocated,
        "shared memory": limits.shared_bytes // per_block if fits else 0,
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
    }
    limit = min(bounds, key=lambda name: bounds[name])
    blocks = bounds[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps / limits.warps, limit)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
