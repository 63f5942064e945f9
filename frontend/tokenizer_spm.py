"""SentencePiece scores as byte-pair merges.

SentencePiece merges, of all neighbouring pairs that form a piece, the one whose piece has the
highest score, leftmost first. Byte-pair encoding merges the pair that comes first in a list. Both
agree if the list holds every way to split a piece into two pieces, in descending order of the
piece's score.
"""

from collections.abc import Iterable, Mapping

Merge = tuple[str, str]


def merges_from_scores(scores: Mapping[str, float]) -> list[Merge]:
    """Merges equivalent to the scores of pieces (normal pieces only: no control, byte, or user's).

    Several splits of one piece have one score, and SentencePiece would take the leftmost. Among
    them the longest left part comes first: it is what leftmost merging has made by then.
    """
    ordered = sorted(scores, key=lambda piece: -scores[piece])
    return [merge for piece in ordered for merge in _splits(piece, scores)]


def _splits(piece: str, pieces: Mapping[str, float]) -> Iterable[Merge]:
    for cut in range(len(piece) - 1, 0, -1):
        left, right = piece[:cut], piece[cut:]
        if left in pieces and right in pieces:
            yield left, right
