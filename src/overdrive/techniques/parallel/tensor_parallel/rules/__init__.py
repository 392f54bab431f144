"""How ranks compute with parts, a file for each kind of function. Importing them registers them."""

from overdrive.techniques.parallel.tensor_parallel.rules import (
    attention,
    elements,
    layers,
    products,
    reductions,
    shapes,
)

__all__ = ["attention", "elements", "layers", "products", "reductions", "shapes"]
