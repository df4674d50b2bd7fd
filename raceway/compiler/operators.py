"""What each operation of torch is in ONNX."""

from raceway.compiler import elementwise_operators, product_operators, reduction_operators, shape_operators

__all__ = ["elementwise_operators", "product_operators", "reduction_operators", "shape_operators"]
