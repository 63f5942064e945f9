"""From planned IR to a step library and packed weights."""
