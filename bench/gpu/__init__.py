"""`make gpu`: is it right on this GPU, and how fast beside the GPU's limits and other engines."""
