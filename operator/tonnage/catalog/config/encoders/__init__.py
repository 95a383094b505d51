"""Encoders of images and sound beside the text part of a model."""
