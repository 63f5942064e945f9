"""The worker pool: barriers hold, also with more workers than processors; clean start and end."""

import ctypes
import threading

import numpy as np
import pytest
from kernel_library import call, library

P = ctypes.c_void_p


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8])
def test_barriers(workers):
    lib = library("portable")
    lib.pool_new.restype = P
    pool = P(lib.pool_new(workers))
    seen, errors = np.zeros((workers, 16), np.int64), np.zeros((workers, 16), np.int64)
    for _ in range(3):
        call(lib.pool_count, pool, 300, seen, errors)
        assert (seen[:, 0] == 300).all() and not errors.any()
    lib.pool_free(pool)


def test_pools_come_and_go():
    lib = library("portable")
    lib.pool_new.restype = P
    before = threading.active_count()
    for _ in range(20):
        lib.pool_free(P(lib.pool_new(3)))
    assert threading.active_count() == before
    assert lib.pool_new(0) is None
    lib.pool_free(P(None))
