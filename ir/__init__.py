"""The intermediate representation: flat SSA functions, op cards, text, verifier, interpreter."""

import inferc.ir.ops  # noqa: F401  (fills the table of cards)
