"""inferc: compile a causal language model into a self-contained serving artifact.

Names are imported on first use, so that `import inferc` stays cheap.
"""

__version__ = "0.1.0"
