"""Passes over the IR, one a file."""
