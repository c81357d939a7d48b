"""Algorithms that add state or edge cases to the core contract."""
