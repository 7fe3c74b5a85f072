"""Every error that the package raises on purpose.

::

    Qwen3TTSError
    ├── ConfigError            a setting is unknown, of the wrong kind or out of range
    ├── BundleError            a model bundle cannot be used
    │   ├── ManifestError      manifest.json is missing, unreadable or of another format
    │   ├── ChecksumError      a file has not the size or hash that the manifest states
    │   └── ContractError      a graph has not the inputs and outputs that the runtime needs
    ├── BuildError             a bundle cannot be built
    │   └── CheckpointError    the checkpoint is incomplete, damaged or of an unknown layout
    ├── DownloadError          a model cannot be fetched
    │   └── UnavailableError   not now: the network or the hub fails; later it may work
    ├── VoiceError             a voice of the library, or its reference clip, cannot be used
    ├── RequestError           the request asks for something that cannot be done
    │   ├── BusyError          too many requests are waiting
    │   ├── ModelNotReadyError the model is still being fetched or built
    │   └── FramingError       what a client sends are no Wyoming events
    └── SynthesisError         the model failed while speaking

The message says what to do. ``code`` goes to Wyoming clients as the code of the error event.
"""


class Qwen3TTSError(Exception):
    """Base of every error of this package."""

    @property
    def code(self) -> str:
        """Name of the error class, sent to clients as the error's code."""
        return type(self).__name__


class ConfigError(Qwen3TTSError):
    """A setting is unknown, of the wrong kind or out of range."""


class BundleError(Qwen3TTSError):
    """A model bundle cannot be used."""


class ManifestError(BundleError):
    """A manifest is missing, unreadable or of another format."""


class ChecksumError(BundleError):
    """A file of a bundle has not the size or hash that the manifest states."""


class ContractError(BundleError):
    """A graph has not the inputs and outputs that the runtime needs."""


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


class FramingError(RequestError):
    """What a client sends are no Wyoming events, or ones beyond every limit."""


class SynthesisError(Qwen3TTSError):
    """The model failed while speaking."""
