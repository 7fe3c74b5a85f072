"""What one client may cost."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits that no well-behaved client meets, so that no other client pays for a bad one."""

    max_connections: int = 512
    """Connections open at the same time."""
    max_header_bytes: int = 262_144
    """Longest first line of an event, in bytes."""
    max_data_bytes: int = 1_048_576
    """Longest data part of an event, in bytes."""
    max_payload_bytes: int = 1_048_576
    """Longest payload of an event, in bytes; speech synthesis needs none, it is skipped."""
    max_text_chars: int = 120_000
    """Longest text of one request, streamed or not, in characters."""
    max_name_chars: int = 2_000
    """Longest voice name, language or speaker (style), in characters."""
    max_pending_requests: int = 64
    """Requests of one connection that are spoken or wait to be spoken."""
    max_events_per_s: int = 500
    """Events read from one connection per second; a faster client is read more slowly. A kilobyte
    of an event counts as another one."""
    max_errors: int = 50
    """Wrong requests on one connection before it is closed."""
    event_timeout_s: float = 10.0
    """Seconds that an event may take to arrive once it has begun."""
    write_timeout_s: float = 30.0
    """Seconds that a client may leave what is sent to it unread."""
    idle_timeout_s: float = 900.0
    """Seconds without any event before a connection is closed."""
    answer_timeout_s: float = 600.0
    """Seconds to wait for the next audio of a request before it fails."""
    error_linger_s: float = 2.0
    """Seconds after an error until the connection of a client that stays silent is closed."""
    shutdown_timeout_s: float = 10.0
    """Seconds that running requests get to end when the server stops."""
