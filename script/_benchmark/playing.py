"""What a listener of an answer would notice: how long its playing stops."""

from collections.abc import Sequence

Pieces = Sequence[tuple[float, float]]
"""Audio of one utterance: when each piece was made, and how many seconds it lasts."""


def stopped_s(utterances: Sequence[Pieces]) -> float:
    """Return the seconds for which playing stops after it has begun.

    Utterances are played one after the other, each piece as soon as it is there and everything
    before it was played.
    """
    played_until_s: float | None = None
    complete_s = 0.0
    stopped = 0.0
    for pieces in utterances:
        for made_s, duration_s in pieces:
            # What belongs to a later utterance is handed on when the earlier ones are complete.
            there_s = max(made_s, complete_s)
            if played_until_s is None:
                played_until_s = there_s
            late_s = max(there_s - played_until_s, 0.0)
            stopped += late_s
            played_until_s += late_s + duration_s
        complete_s = max([complete_s, *(made_s for made_s, _ in pieces)])
    return stopped
