"""Writes bundles in the published layout (onnx-community), from the same checkpoints as our own.

Two things need such bundles: the tests of the runtime's second adapter, and the benchmark, whose
baseline is that design at the same precision. So the graphs are written as a trace of the official
modules comes out, operator by operator: concatenated cache, repeated key/value heads, a code
predictor without cache that scores every group in each run, a codec decoder without state. Nobody
should speak with them who can build a bundle of our own layout.

The names, shapes and quirks of inputs and outputs are those of the published files, as their
consumers describe them; the files themselves were not at hand.
"""

from tests.support.onnx_community_writer.bundle import (
    COMPONENTS,
    PublishedOptions,
    write_published_bundle,
)

__all__ = ["COMPONENTS", "PublishedOptions", "write_published_bundle"]
