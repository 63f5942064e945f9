"""Torch-free batched runtime."""
