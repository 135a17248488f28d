"""Proof on your own devices that all combinations train the same model."""
