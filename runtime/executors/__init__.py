"""Executors: run a plan on a target."""
