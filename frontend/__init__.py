"""Capture a model as a plain graph; weights stay on disk."""
