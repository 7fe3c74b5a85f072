"""Typed doors to the ONNX graphs; the only importer of onnxruntime."""

import os

# onnxruntime reports its use to its makers unless this is set before it is loaded; speech in
# somebody's home is nobody else's business. Whoever wants the reports sets the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
