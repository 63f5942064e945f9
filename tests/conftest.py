"""Options shared by all tests."""

from __future__ import annotations

import os

import pytest

# Threads of numpy wait for each other in a loop: on a busy machine that is many times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the expected text of golden tests; review the diff like code",
    )
