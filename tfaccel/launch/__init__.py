"""Starts several workers of one training on this host: python -m tfaccel.launch."""
