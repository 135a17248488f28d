"""Model builders, called as ``f(input_shape=..., num_classes=...)``."""
