"""Options shared by all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Threads of numpy wait for each other in a loop: on a busy machine that is many times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # the other processes want the other cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test asserts a time: an example that took long says only that the machine was busy.
settings.register_profile("inferc", deadline=None)
settings.load_profile("inferc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the expected text of golden tests; review the diff like code",
    )
