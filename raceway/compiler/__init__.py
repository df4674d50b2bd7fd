"""Functions of torch, with their gradients, as graphs that ONNX Runtime computes without Python."""
