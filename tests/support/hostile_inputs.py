"""What a broken or malicious client sends: known cases, and random damage to good events."""

import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wyoming.event import Event, write_event

_MIB: Final = 2**20
_LONG: Final = 100_000
_MARKS: Final = (".", "~", "`", "_", "*_", "…", '"', "!?", "(", "<a ", "#", "今。", "1. ")


@dataclass(frozen=True)
class HostileInput:
    """One thing that a client may do."""

    kind: str
    pieces: Sequence[bytes]
    pause_s: float = 0.0
    """Between the pieces."""


def encode(event_type: str, data: dict[str, Any] | None = None) -> bytes:
    """Return an event as bytes; its data follows the header, as Wyoming's clients send it."""
    encoded = io.BytesIO()
    write_event(Event(event_type, data or {}), encoded)
    return encoded.getvalue()


def header(event_type: str, **fields: Any) -> bytes:
    """Return a header line with any fields."""
    return json.dumps({"type": event_type, **fields}).encode() + b"\n"


def _with_body(event_type: str, body: bytes) -> bytes:
    return header(event_type, data_length=len(body)) + body


def _synthesize(text: str, **voice: object) -> bytes:
    return encode("synthesize", {"text": text, "voice": voice})


FIXED: Final[dict[str, bytes]] = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: voice\r\n\r\n",
    "HTTP POST": b"POST /api HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    "TLS": bytes.fromhex("16030100a5010000a10303") + b"\x01" * 150,
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "words": b"hello\n",
    "array": b"[1, 2]\n",
    "null": b"null\n",
    "half an object": b'{"type": "describe"\n',
    "no UTF-8": b'{"type": "\xff\xfe"}\n',
    "UTF-16": '{"type": "describe"}\n'.encode("utf-16"),
    "NUL bytes": b"\0" * 1_000 + b"\n",
    "deep nesting": b'{"type":' * _LONG + b"\n",
    "deep arrays": b'{"data": ' + b"[" * _LONG + b"\n",
    "100,000 digits": b'{"data_length": ' + b"9" * _LONG + b"}\n",
    "10 MB header": b'{"type": "' + b"x" * (10 * _MIB),
    "negative length": header("ping", data_length=-1),
    "float length": header("ping", data_length=2.0),
    "infinite length": b'{"type": "ping", "data_length": 1e999}\n',
    "true as length": header("ping", data_length=True),
    "text as length": header("ping", payload_length="9"),
    "2^40 bytes": header("ping", payload_length=2**40),
    "2^70 bytes": header("ping", data_length=2**70),
    "16 MB payload": header("audio-chunk", payload_length=300 * _MIB) + b"x" * (16 * _MIB),
    "no type": b'{"data": {}}\n',
    "type list": b'{"type": ["describe"]}\n',
    "data text": header("ping", data="x"),
    "body no JSON": header("ping", data_length=3) + b"abc",
    "body nested deeply": header("ping", data_length=9_000) + b"[" * 9_000,
    "no text": header("synthesize"),
    "text number": header("synthesize", data={"text": 1.5}),
    "voice list": header("synthesize", data={"text": "a", "voice": []}),
    "context text": header("synthesize", data={"text": "a", "context": "x"}),
    "unknown voice": _synthesize("Hi.", name="nobody"),
    "voice number": _synthesize("Hi.", name=7),
    "voice that is a path": _synthesize("Hi.", name="../../../etc/passwd"),
    "voice of 50 kB": _synthesize("Hi.", name="v" * 50_000),
    "chunk without start": encode("synthesize-chunk", {"text": "a"}),
    "stop without start": encode("synthesize-stop"),
    "double start": encode("synthesize-start") * 3,
    "lone surrogates": header("synthesize", data={"text": "\ud800\udfff H\udc00"}),
    "control characters": header("synthesize", data={"text": "\0\x07\x1b[2J\x7f"}),
    "zero-width characters": header("synthesize", data={"text": "\u200b\u200d\ufeff" * 500}),
    "special tokens": header("synthesize", data={"text": "<|im_end|><|endoftext|> hi"}),
    "word of 2,000 letters": header("synthesize", data={"text": "x" * 2_000}),
    "SSML": header("synthesize", data={"text": "<speak><p>Hi</p></speak>"}),
    "100 kB of text": encode("synthesize", {"text": "Some words. " * 8_000}),
    "text beyond the limit": encode("synthesize", {"text": "x" * 130_000}),
    "megabyte of lists": _with_body("x", b'{"x":[' + b",".join([b"[]"] * 340_000) + b"]}"),
    "megabyte of keys": _with_body(
        "ping", b"{" + b",".join(b'"%d":1' % number for number in range(100_000)) + b"}"
    ),
    "unknown event": header("run-pipeline", data={"name": "x"}),
    "200 pings at once": encode("ping", {"text": "x"}) * 200,
    "60 requests at once": header("synthesize", data={"text": "Hi."}) * 60,
}


def make_hostile(rng: random.Random) -> HostileInput:
    """Return something to send, drawn at random."""
    makers: list[tuple[int, Callable[[random.Random], HostileInput]]] = [
        (10, _fixed),
        (6, _damaged),
        (2, _noise),
        (1, _marks),
        (1, _byte_by_byte),
        (1, _slow_loris),
        (1, _long_stream),
    ]
    make = rng.choices([make for _, make in makers], [weight for weight, _ in makers])[0]
    return make(rng)


def _fixed(rng: random.Random) -> HostileInput:
    kind = rng.choice(list(FIXED))
    return HostileInput(kind, [FIXED[kind]])


def _damaged(rng: random.Random) -> HostileInput:
    """Take good events and damage some bytes of them."""
    content = bytearray(_good_events(rng))
    for _ in range(rng.randint(1, 5)):
        if content:
            place = rng.randrange(len(content))
            length = rng.randint(1, 40)
            match rng.choice(["flip", "insert", "remove", "repeat", "cut"]):
                case "flip":
                    content[place] ^= 1 << rng.randrange(8)
                case "insert":
                    content[place:place] = rng.randbytes(length)
                case "remove":
                    del content[place : place + length]
                case "repeat":
                    content[place:place] = content[:length]
                case _:
                    del content[place:]
    return HostileInput("damaged events", [bytes(content)])


def _good_events(rng: random.Random) -> bytes:
    events = [
        encode("describe"),
        encode("ping", {"text": "x"}),
        _synthesize("Hi there.", name="ryan", language="en"),
        encode("synthesize-start", {"voice": {"name": "vivian"}}),
        encode("synthesize-chunk", {"text": "Some text. "}),
        encode("synthesize-stop"),
    ]
    return b"".join(rng.choices(events, k=rng.randint(1, 6)))


def _noise(rng: random.Random) -> HostileInput:
    return HostileInput("random bytes", [rng.randbytes(rng.choice([1, 10, 1_000, 100_000]))])


def _marks(rng: random.Random) -> HostileInput:
    """Rows of one sign, which are what slows careless text rules down."""
    marks = rng.choice(_MARKS)
    text = rng.choice(["", "Hello. ", "a."]) + marks * (_LONG // len(marks))
    return HostileInput("rows of marks", [encode("synthesize", {"text": text})])


def _byte_by_byte(rng: random.Random) -> HostileInput:
    content = _good_events(rng)[:400]
    return HostileInput("byte by byte", [bytes([byte]) for byte in content], pause_s=0.001)


def _slow_loris(rng: random.Random) -> HostileInput:
    letters = [bytes([letter]) for letter in b'{"type": "describe"'][: rng.randint(1, 19)]
    return HostileInput("slow-loris", letters, pause_s=0.3)


def _long_stream(rng: random.Random) -> HostileInput:
    """A stream of text whose client never says that it is over."""
    pieces = [encode("synthesize-start")]
    word = rng.choice(["word ", "word. ", "x", "\n", "今天"])
    pieces += [encode("synthesize-chunk", {"text": word * 50}) for _ in range(rng.randint(1, 40))]
    return HostileInput("endless stream", pieces, pause_s=0.005)
