"""Writers of the ONNX graphs of a bundle, and the quantiser of their weights."""
