"""The generated step library, through ctypes. Mirrors `codegen/include/inferc/step_abi.h`."""

import ctypes
import os
import time
import typing
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inferc.errors import ArtifactError, InfercError
from inferc.runtime.artifact import READABLE_ABI_VERSIONS
from inferc.runtime.pool_choice import DEFAULT_POOL, PoolChoice

_Int32Pointer = ctypes.c_void_p
_INTEGERS_ABI_VERSION = 5
_MEANINGS = {
    1: "too many tokens",
    2: "too many sequences",
    3: "too many logit rows",
    4: "the block table is too wide",
    5: "a decode step with other than one token a sequence",
    6: "arena, weights, KV pages or states are not aligned to 64 bytes",
    9: "something is wanted that the library cannot do",
}

_loaded: dict[Path, list[tuple[int, int]]] = {}
"""Device and inode of the files that have been loaded from each path."""


class StepArgs(ctypes.Structure):
    """`inferc_step_args`; see the header for units and shapes."""

    _fields_ = (
        ("tokens", ctypes.c_int32),
        ("sequences", ctypes.c_int32),
        ("logit_rows", ctypes.c_int32),
        ("table_stride", ctypes.c_int32),
        ("ids", _Int32Pointer),
        ("positions", _Int32Pointer),
        ("slots", _Int32Pointer),
        ("sequence_starts", _Int32Pointer),
        ("context_lengths", _Int32Pointer),
        ("block_tables", _Int32Pointer),
        ("logit_indices", _Int32Pointer),
        ("weights", ctypes.c_void_p),
        ("caches", ctypes.c_void_p),
        ("arena", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("state_slots", _Int32Pointer),
        ("states", ctypes.c_void_p),
        ("profile_ns", ctypes.c_void_p),
        ("greedy_ids", _Int32Pointer),
        ("greedy_end", ctypes.c_int32),
    )


class PoolOptions(ctypes.Structure):
    """`inferc_pool_options`; see the header."""

    _fields_ = (
        ("threads", ctypes.c_int32),
        ("spin_us", ctypes.c_int32),
        ("pinned", ctypes.c_int32),
    )


class StepLibrary:
    """A loaded step library and its pool of worker threads.

    `abi_version` is that of the library: what newer fields of the arguments say, an older one
    does not see.
    """

    def __init__(self, path: Path, threads: int, choice: PoolChoice = DEFAULT_POOL) -> None:
        self._library = _load(path)
        self._steps = (self._library.inferc_step_prefill, self._library.inferc_step_decode)
        self.abi_version = int(self._library.inferc_abi_version())
        self._start(threads, choice)

    def use_pool(self, threads: int, choice: PoolChoice) -> None:
        """Go on with other workers; between steps."""
        before = self._end
        self._start(threads, choice)
        before()

    def _start(self, threads: int, choice: PoolChoice) -> None:
        self._pool: int | None = self._make_pool(threads, choice)
        self._process = os.getpid()
        # Also ends the workers of an engine that is dropped without being closed.
        self._end = weakref.finalize(self, _end_pool, self._library, self._pool, self._process)
        if not self._pool:
            raise InfercError(
                f"Could not start {threads} worker threads for the step; ask for fewer (threads)."
            )

    def _make_pool(self, threads: int, choice: PoolChoice) -> int | None:
        if choice == DEFAULT_POOL:
            return typing.cast(int | None, self._library.inferc_pool_create(threads))
        self._require(3, "be tuned")
        options = PoolOptions()
        self._library.inferc_pool_defaults(threads, ctypes.byref(options))
        if choice.spin_us is not None:
            options.spin_us = choice.spin_us
        if choice.pinned is not None:
            options.pinned = int(choice.pinned)
        pool = self._library.inferc_pool_create_with(ctypes.byref(options))
        return typing.cast(int | None, pool)

    def run(self, args: StepArgs, decode: bool) -> None:
        """Run one step; the interpreter's lock is free meanwhile."""
        if not self._end.alive:
            raise InfercError("The engine has been closed; load the artifact again.")
        if self._process != os.getpid():
            raise InfercError(
                "The engine was loaded before this process was forked, and its worker threads"
                " stayed behind; load the artifact in the process that uses it."
            )
        code = self._steps[decode](self._pool, ctypes.byref(args))
        if code != 0:
            raise InfercError(refusal(code, args))

    def calls(self, decode: bool) -> int:
        """Kernel calls of a step: what sizes `profile_ns`."""
        self._require(3, "measure its kernels")
        return int(self._library.inferc_step_calls(int(decode)))

    def read_bandwidth(self, data: npt.NDArray[np.float32]) -> float:
        """Bytes a second of the workers reading `data`, each its part."""
        self._require(3, "measure the machine")
        start = time.perf_counter()
        nbytes = self._library.inferc_read_bytes(self._pool, data.ctypes.data, data.nbytes)
        return float(nbytes / (time.perf_counter() - start))

    def flops_per_second(self, rounds: int) -> float:
        """Float32 flops a second of the workers in `rounds` of multiply-adds on registers."""
        self._require(3, "measure the machine")
        start = time.perf_counter()
        flops = self._library.inferc_multiply_add(self._pool, rounds)
        return float(flops / (time.perf_counter() - start))

    @property
    def measures_integers(self) -> bool:
        """Whether the library is new enough for `integers_per_second`."""
        return self.abi_version >= _INTEGERS_ABI_VERSION

    def integers_per_second(self, bits: int, rounds: int) -> float:
        """Products and sums of integers of 8 or 16 bits a second, as many as `rounds` has."""
        self._require(_INTEGERS_ABI_VERSION, "measure the machine")
        start = time.perf_counter()
        done = self._library.inferc_multiply_add_integers(self._pool, bits, rounds)
        return float(done / (time.perf_counter() - start))

    def _require(self, version: int, what: str) -> None:
        if self.abi_version < version:
            raise InfercError(
                f"The artifact's step library (ABI {self.abi_version}) cannot {what};"
                " compile the model again."
            )

    def close(self) -> None:
        """Stop the workers; safe to call twice."""
        self._end()


def _end_pool(library: ctypes.CDLL, pool: int | None, process: int) -> None:
    """A forked process has the memory of the pool but not its threads: nothing to end there."""
    if pool and process == os.getpid():
        library.inferc_pool_destroy(pool)


def _name(path: Path) -> str:
    """A name under which dlopen looks at the file itself.

    Libraries stay loaded, and dlopen takes a name that it knows for the same library even if the
    file has been replaced since (an artifact compiled again). Inodes are compared under new names.
    """
    status = path.stat()
    files = _loaded.setdefault(path, [])
    file = (status.st_dev, status.st_ino)
    if file not in files:
        files.append(file)
    return f"{path.parent}{'/.' * files.index(file)}/{path.name}"


def open_library(path: Path) -> ctypes.CDLL:
    """The shared library of a file, as it is now."""
    try:
        return ctypes.CDLL(_name(path.resolve()))
    except OSError as error:
        raise _unloadable(path, error) from error


def check_abi(path: Path, found: int, readable: tuple[int, ...]) -> None:
    """Refuse a library whose interface this runtime does not speak."""
    if found not in readable:
        known = " or ".join(map(str, readable))
        raise ArtifactError(
            f"{path}: expected step ABI {known}, found {found}; compile the model again."
        )


def refusal(code: int, args: StepArgs) -> str:
    """What a step says of its input when it returns `code`."""
    return (
        f"The compiled step refused its input: {_MEANINGS.get(code, f'code {code}')}"
        f" (found {args.tokens} tokens of {args.sequences} sequences,"
        f" {args.logit_rows} logit rows, {args.table_stride} table columns)."
    )


def _unloadable(path: Path, error: Exception) -> ArtifactError:
    return ArtifactError(f"{path}: the step library cannot be loaded ({error}).")


def _load(path: Path) -> ctypes.CDLL:
    library = open_library(path)
    try:
        library.inferc_abi_version.restype = ctypes.c_int32
        version = library.inferc_abi_version()
        library.inferc_pool_create.restype = ctypes.c_void_p
        library.inferc_pool_create.argtypes = (ctypes.c_int32,)
        library.inferc_pool_destroy.restype = None
        library.inferc_pool_destroy.argtypes = (ctypes.c_void_p,)
        for step in (library.inferc_step_prefill, library.inferc_step_decode):
            step.restype = ctypes.c_int32
            step.argtypes = (ctypes.c_void_p, ctypes.POINTER(StepArgs))
        if version >= 3:
            library.inferc_step_calls.restype = ctypes.c_int32
            library.inferc_step_calls.argtypes = (ctypes.c_int32,)
            library.inferc_read_bytes.restype = ctypes.c_uint64
            library.inferc_read_bytes.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
            library.inferc_multiply_add.restype = ctypes.c_double
            library.inferc_multiply_add.argtypes = (ctypes.c_void_p, ctypes.c_int64)
            library.inferc_pool_create_with.restype = ctypes.c_void_p
            library.inferc_pool_create_with.argtypes = (ctypes.POINTER(PoolOptions),)
            library.inferc_pool_defaults.restype = None
            library.inferc_pool_defaults.argtypes = (ctypes.c_int32, ctypes.POINTER(PoolOptions))
        if version >= _INTEGERS_ABI_VERSION:
            integers = library.inferc_multiply_add_integers
            integers.restype = ctypes.c_double
            integers.argtypes = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64)
    except AttributeError as error:
        raise _unloadable(path, error) from error
    check_abi(path, version, READABLE_ABI_VERSIONS)
    return library
