"""Whatever a client does in whatever order, its answers are whole and its leaving is noticed."""

import asyncio

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.protocol.client import WireClient, eventually, listening, types
from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts.protocol import connection

TEXTS = st.sampled_from(["Hi", "", "one two", "FAIL", "Hi FAIL", "a CRASH", "\n"])
VOICES = st.sampled_from([None, {"name": "ryan"}, {}, {"name": "nobody"}, {"name": 3}])

STRAY = "without synthesize-start"
PLAIN = ("audio-start", "audio-chunk", "audio-stop")
ENDS = {
    "plain": {PLAIN, ("error",), ("audio-start", "audio-chunk", "error", "audio-stop")},
    "stream": {
        (*PLAIN, "synthesize-stopped"),
        ("error", "synthesize-stopped"),
        ("audio-start", "audio-chunk", "error", "audio-stop", "synthesize-stopped"),
    },
}


class WyomingMachine(RuleBasedStateMachine):
    """Sends events and, at checks, compares what has come back with what was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.source = FakeSpeechSource()
        self.is_streaming = False
        self.asked: list[str] = []
        self.num_stray = 0

    def await_(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    @initialize()
    def connect(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(connection, "MAX_ERRORS", 1_000)
        self.context = listening(self.source)
        self.listener = self.await_(self.context.__aenter__())
        self.client = self.await_(WireClient.connect(self.listener))

    @rule(text=TEXTS, voice=VOICES)
    def synthesize(self, text, voice) -> None:
        self.await_(self.client.send("synthesize", {"text": text, "voice": voice}))
        if not self.is_streaming:
            self.asked.append("plain")

    @rule(voice=VOICES)
    def start(self, voice) -> None:
        self.await_(self.client.send("synthesize-start", {"voice": voice}))
        self.is_streaming = True
        self.asked.append("stream")

    @precondition(lambda self: self.is_streaming)
    @rule(texts=st.lists(TEXTS, max_size=3))
    def chunks(self, texts) -> None:
        for text in texts:
            self.await_(self.client.send("synthesize-chunk", {"text": text}))

    @precondition(lambda self: self.is_streaming)
    @rule()
    def stop(self) -> None:
        self.await_(self.client.send("synthesize-stop"))
        self.is_streaming = False

    @precondition(lambda self: not self.is_streaming)
    @rule(event_type=st.sampled_from(["synthesize-chunk", "synthesize-stop"]))
    def stray(self, event_type) -> None:
        self.await_(self.client.send(event_type, {"text": "Hi"}))
        self.num_stray += 1

    @precondition(lambda self: not self.is_streaming)
    @rule(texts=st.lists(TEXTS, max_size=3), voice=VOICES)
    def converse(self, texts, voice) -> None:
        """Send a whole stream as Home Assistant does, with the compatibility copy."""
        self.start(voice)
        self.chunks(texts)
        self.synthesize("".join(texts), voice)
        self.stop()

    @rule(event_type=st.sampled_from(["transcribe", "select-program", "x", None]))
    def let_time_pass(self, event_type) -> None:
        if event_type is not None:
            self.await_(self.client.send(event_type, {"name": "x"}))
        self.await_(asyncio.sleep(0.002))

    @precondition(lambda self: not self.is_streaming and self.asked)
    @rule()
    def check_answers(self) -> None:
        self.await_(self._check_answers())

    @precondition(lambda self: self.is_streaming or len(self.asked) > 2)
    @rule(is_rude=st.booleans())
    def come_again(self, is_rude) -> None:
        """Go away, at any moment, and come back."""
        if is_rude:
            self.client.reset()
        self.client.writer.close()
        self.await_(eventually(lambda: self.listener.status.num_connected == 0))
        assert self.source.num_active == 0
        self.client = self.await_(WireClient.connect(self.listener))
        self.is_streaming = False
        self.asked = []
        self.num_stray = 0

    async def _check_answers(self) -> None:
        await self.client.send("ping")
        events = await self.client.read_until("pong")  # now every event has been taken in
        (served,) = self.listener._connections.values()
        await eventually(lambda: not served._responses)
        # A failed plain answer gets its audio-stop only now that the client goes on.
        await self.client.send("ping")
        events += await self.client.read_until("pong")
        strays = [event for event in events if STRAY in (event.data.get("text") or "")]
        assert len(strays) == self.num_stray
        kinds = types([event for event in events if event.type != "pong" and event not in strays])
        self._match(kinds)
        self.asked = []
        self.num_stray = 0

    def _match(self, kinds: list[str]) -> None:
        """Take the answers off the front, in the order that they were asked for."""
        rest = kinds
        for kind in self.asked:
            matching = [end for end in ENDS[kind] if tuple(rest[: len(end)]) == end]
            assert matching, f"no whole answer to a {kind} request begins {rest[:6]}"
            rest = rest[len(max(matching, key=len)) :]
        assert not rest

    def teardown(self) -> None:
        if self.is_streaming:
            self.stop()
        self.await_(self._check_answers())
        self.client.writer.close()
        self.await_(eventually(lambda: self.listener.status.num_connected == 0))
        self.await_(self.context.__aexit__(None, None, None))
        assert self.source.num_active == 0
        self.loop.close()
        self.patch.undo()


WyomingMachine.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestWyomingMachine = WyomingMachine.TestCase
