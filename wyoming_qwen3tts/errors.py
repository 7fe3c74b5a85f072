"""Every error that the package raises on purpose.

::

    Qwen3TTSError
    ├── ConfigError
    ├── BundleError: ManifestError, ChecksumError, GraphInterfaceError
    ├── BuildError: CheckpointError
    ├── DownloadError: UnavailableError
    ├── VoiceError
    ├── RequestError: BusyError, ModelNotReadyError, ProtocolError
    └── SynthesisError

The message says what to do. Failures of other kinds, as graphs raise them, become one of these with
:func:`synthesis_error`. Wyoming clients get the name of the class as the code of the error event.
"""

import errno
from typing import Final

# What onnxruntime, its providers and the C++ library say when memory runs out.
_OUT_OF_MEMORY: Final = ("bad_alloc", "bad allocation", "failed to allocate", "out of memory")


class Qwen3TTSError(Exception):
    """Base of every error of this package."""


class ConfigError(Qwen3TTSError):
    """A setting is unknown, of the wrong kind or out of range."""


class BundleError(Qwen3TTSError):
    """A model bundle cannot be used."""


class ManifestError(BundleError):
    """A manifest is missing, unreadable or of another format."""


class ChecksumError(BundleError):
    """A file of a bundle does not match the size or hash in the manifest."""


class GraphInterfaceError(BundleError):
    """A graph lacks inputs or outputs that the runtime needs."""


class BuildError(Qwen3TTSError):
    """A bundle cannot be built."""


class CheckpointError(BuildError):
    """A checkpoint is incomplete, damaged or of an unknown layout."""


class DownloadError(Qwen3TTSError):
    """A model cannot be fetched."""


class UnavailableError(DownloadError):
    """The network or the hub fails; trying again later may work, and goes on where it stopped."""

    retry_after_s: float | None = None
    """Seconds that the hub asks to wait; None where it did not say."""


class VoiceError(Qwen3TTSError):
    """A voice of the library, or its reference clip, cannot be used."""


class RequestError(Qwen3TTSError):
    """The request asks for something that cannot be done."""


class BusyError(RequestError):
    """Too many requests are waiting."""


class ModelNotReadyError(RequestError):
    """The model that is asked for is still being fetched or built, or could not be."""


class ProtocolError(RequestError):
    """A client sends something that is not a Wyoming event, or one beyond every limit."""


class SynthesisError(Qwen3TTSError):
    """The model failed while speaking."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out."""
    if isinstance(error, MemoryError | OSError):
        return isinstance(error, MemoryError) or error.errno == errno.ENOMEM
    return any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def synthesis_error(cause: BaseException, what_failed: str) -> Qwen3TTSError:
    """Return the error that a request gets for a failure of any kind; ours stay as they are.

    ``what_failed`` begins the message, such as "The model failed".
    """
    if isinstance(cause, Qwen3TTSError):
        return cause
    if is_out_of_memory(cause):
        reason = "out of memory; close other programs, or lower parallel_utterances"
    else:
        reason = f"{type(cause).__name__}: {str(cause).strip()}".removesuffix(": ")
    error = SynthesisError(f"{what_failed}: {reason}.")
    error.__cause__ = cause
    return error
