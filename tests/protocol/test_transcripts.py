"""Recorded orders of events, as JSON lines in tests/golden/transcripts.

A line is ``{"client": [type, data]}`` (sent) or ``{"server": [type, data, payload bytes]}`` (must
come next). The files were written by hand from the protocol and from what Home Assistant sends.
"""

import json
from pathlib import Path

import pytest

from tests.protocol.client import WireClient, listening
from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts import __version__

TRANSCRIPTS = sorted((Path(__file__).parents[1] / "golden" / "transcripts").glob("*.jsonl"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
async def test_transcript(path):
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    async with (
        listening(FakeSpeechSource()) as listener,
        await WireClient.connect(listener) as client,
    ):
        for line in lines:
            if "client" in line:
                await client.send(*line["client"])
                continue
            event = await client.expect_any()
            got = [event.type, event.data, len(event.payload or b"")]
            expected = json.loads(json.dumps(line["server"]).replace("{version}", __version__))
            assert got == expected
        await client.expect_alive()


def test_every_kind_of_answer_is_recorded():
    assert {path.stem for path in TRANSCRIPTS} >= {
        "describe",
        "empty",
        "error_plain",
        "error_stream",
        "pipelined",
        "plain",
        "streaming",
    }
