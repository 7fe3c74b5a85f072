"""Writes bundles from official checkpoints; the only importer of onnx."""
