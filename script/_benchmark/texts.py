"""What is spoken, and how long it takes to say."""

import math
from dataclasses import dataclass
from typing import Final

# About fifteen characters a second, at 12.5 frames a second.
_CHARACTERS_PER_FRAME: Final = 1.2
_MIN_FRAMES: Final = 4


@dataclass(frozen=True)
class Text:
    """A text as it is submitted: one utterance for each sentence."""

    name: str
    sentences: tuple[str, ...]

    def frames(self, share: float = 1.0) -> list[int]:
        """Return how many frames each sentence gets: its length, or the first ``share`` of it."""
        return [
            max(_MIN_FRAMES, math.ceil(len(sentence) / _CHARACTERS_PER_FRAME * share))
            for sentence in self.sentences
        ]


WORD: Final = Text("word", ("Hello.",))
SENTENCE: Final = Text("sentence", ("The kitchen light is on and the heating is set to 20.",))
PARAGRAPH: Final = Text(
    "paragraph",
    (
        "Good morning, it is half past seven.",
        "Today will be cloudy, with rain in the afternoon.",
        "Your first meeting starts at nine.",
        "The washing machine finished an hour ago.",
        "The front door was left unlocked last night.",
        "Shall I start the coffee machine?",
    ),
)
STREAM: Final = Text("stream", ("The window in the bedroom is still open.",))
"""What each of several clients asks for."""
