"""What one model has done since the server started: its part of a status report."""

from dataclasses import dataclass

from wyoming_qwen3tts.engine.request_report import RequestReport
from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.synthesis.utterance import FinishReason

_WORTH_A_WARNING = frozenset({str(FinishReason.LENGTH), str(FinishReason.RETRY)})


@dataclass
class ModelUsage:
    """Sums over all requests, the warm-up included."""

    num_requests: int = 0
    num_utterances: int = 0
    audio_s: float = 0.0
    """Seconds of audio that went out."""
    synthesis_s: float = 0.0
    """Seconds from the prefill of each utterance to its end; those of lanes side by side add up."""
    num_warnings: int = 0
    """Utterances that were cut off or needed a second attempt, and requests for what is not
    offered."""
    num_errors: int = 0
    """Requests that failed, and attempts to open the model."""

    @property
    def rtf(self) -> float | None:
        """Synthesis seconds per audio second; None while nothing was spoken."""
        return self.synthesis_s / self.audio_s if self.audio_s else None

    def add(self, report: RequestReport) -> None:
        """Count a request that has ended."""
        self.num_requests += 1
        self.num_utterances += report.num_utterances
        self.audio_s += report.audio_s
        self.synthesis_s += report.synthesis_s
        self.num_warnings += sum(reason in _WORTH_A_WARNING for reason in report.finish_reasons)

    def add_error(self, error: Exception) -> None:
        """Count what a request failed with."""
        if isinstance(error, RequestError):
            self.num_warnings += 1
        else:
            self.num_errors += 1

    def describe(self) -> str:
        """Return the figures as the end of a log line."""
        rtf = "none" if self.rtf is None else f"{self.rtf:.2f}"
        return (
            f"requests={self.num_requests} sentences={self.num_utterances} "
            f"generation={self.synthesis_s:.1f}s audio={self.audio_s:.1f}s rtf={rtf} "
            f"warnings={self.num_warnings} errors={self.num_errors}"
        )
