"""What one client may cost."""

from dataclasses import dataclass

from wyoming_qwen3tts.settings import setting


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits that no well-behaved client meets, so that no other client pays for a bad one."""

    max_connections: int = setting(512, "Connections open at the same time.", minimum=1)
    max_header_bytes: int = setting(
        262_144, "Longest first line of an event, in bytes.", minimum=1_024
    )
    max_data_bytes: int = setting(
        1_048_576, "Longest data part of an event, in bytes.", minimum=1_024
    )
    max_payload_bytes: int = setting(
        1_048_576,
        "Longest payload of an event, in bytes; speech synthesis needs none, it is skipped.",
        minimum=0,
    )
    max_text_chars: int = setting(
        120_000, "Longest text of one request, streamed or not, in characters.", minimum=1
    )
    max_name_chars: int = setting(
        2_000, "Longest voice name, language or speaker (style), in characters.", minimum=1
    )
    max_pending_requests: int = setting(
        64, "Requests of one connection that are spoken or wait to be spoken.", minimum=1
    )
    max_events_per_s: int = setting(
        500,
        "Events read from one connection per second; a faster client is read more slowly. A "
        "kilobyte of an event counts as another one.",
        minimum=1,
    )
    max_errors: int = setting(
        50, "Wrong requests on one connection before it is closed.", minimum=1
    )
    event_timeout_s: float = setting(
        10.0, "Seconds that an event may take to arrive once it has begun.", minimum=0.01
    )
    write_timeout_s: float = setting(
        30.0, "Seconds that a client may leave what is sent to it unread.", minimum=0.01
    )
    idle_timeout_s: float = setting(
        900.0, "Seconds without any event before a connection is closed.", minimum=0.01
    )
    answer_timeout_s: float = setting(
        600.0, "Seconds to wait for the next audio of a request before it fails.", minimum=0.01
    )
    error_linger_s: float = setting(
        2.0,
        "Seconds after an error until the connection of a client that stays silent is closed.",
        minimum=0.0,
    )
    shutdown_timeout_s: float = setting(
        10.0, "Seconds that running requests get to end when the server stops.", minimum=0.0
    )
