"""The second bundle layout: ``onnx-community/Qwen3-TTS-12Hz-...`` as it was published.

The graphs differ from ours in what they leave to the caller, and each module here fills one gap, so
that synthesis sees the same protocols:

* the talker gives its whole cache back in each step, so positions are copied (``talker``)
* the code predictor scores one group per run, so a frame takes G - 1 runs and the codes are drawn
  out here, from the same numbers as in our own graph (``code_predictor``)
* embeddings are graphs, not tables (``embeddings``)
* the codec decodes 25 frames without state, and encodes one second (``codec``)

Tested with graphs of the same names, shapes and quirks; the published files were not at hand.
"""

from wyoming_qwen3tts.runtime.onnx_community.bundle import open_published_bundle
from wyoming_qwen3tts.runtime.onnx_community.files import (
    is_published_bundle,
    read_published_manifest,
)

__all__ = ["is_published_bundle", "open_published_bundle", "read_published_manifest"]
