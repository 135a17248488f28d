"""Training data: sources, order, augmentation, normalisation, pipeline."""
