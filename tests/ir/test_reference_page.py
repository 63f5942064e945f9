"""docs/ops.md is what the cards say now."""

from __future__ import annotations

from pathlib import Path

from inferc.ir.card import CARDS
from inferc.ir.reference_page import reference_page

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference_page(), "run: python -m inferc.ir.reference_page"


def test_every_op_is_on_the_page() -> None:
    page = reference_page()
    assert [name for name in CARDS if f"### `{name}(" not in page] == []
