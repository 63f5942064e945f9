"""Kernel definitions for CUDA: mostly those of the CPU with other templates."""
