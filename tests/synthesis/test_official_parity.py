"""The product speaks the very codes that the official PyTorch package spoke."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parity.cases import Case
from tests.parity.comparison import as_codes
from tests.parity.golden import CODES_FILE, read_case
from tests.parity.product_subject import ProductSubject
from tests.support.tiny_checkpoint import TINY_CHECKPOINTS
from wyoming_qwen3tts.runtime.speech_model import SpeechModel

GOLDEN = Path(__file__).parent.parent / "golden"
NUM_LANES = 4
# A CustomVoice model without a speaker is not offered: the official package then improvises one.
NOT_OFFERED = {"0.6B-custom_voice": 10, "1.7B-custom_voice": 10}


def golden_cases(checkpoint: str) -> list[tuple[Case, Any]]:
    entries = json.loads((GOLDEN / CODES_FILE).read_text(encoding="utf-8"))["cases"]
    return [
        (read_case(entry), as_codes(entry["codes"]))
        for entry in entries
        if entry["checkpoint"] == checkpoint
    ]


@pytest.mark.parametrize("checkpoint", TINY_CHECKPOINTS)
def test_greedy_codes_are_the_official_ones(
    tiny_model: Callable[[str], SpeechModel], checkpoint: str
) -> None:
    entries = golden_cases(checkpoint)
    subject = ProductSubject(tiny_model(checkpoint), num_lanes=NUM_LANES)

    utterances = subject.speak([case for case, _ in entries])

    assert len(entries) >= 30
    assert utterances.count(None) == NOT_OFFERED.get(checkpoint, 0)
    for (case, codes), utterance in zip(entries, utterances, strict=True):
        if utterance is not None:
            np.testing.assert_array_equal(utterance.codes, codes, err_msg=str(case))
            assert len(utterance.samples) == 1920 * len(codes)
