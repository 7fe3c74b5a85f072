"""Opens and runs models; the only room that imports onnxruntime."""

import os

# onnxruntime sends usage reports unless this is set before it is loaded. Set it to 0 to allow them.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
