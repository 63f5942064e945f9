"""Kernel definitions, declaration only."""
