"""Typed doors to the ONNX graphs; the only importer of onnxruntime."""
