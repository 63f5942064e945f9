"""Targets: capabilities, type names, compile commands."""
