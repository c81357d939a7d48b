"""Tuning: a study of trials, each a few ordinary runs, and an honest look at the best of them."""
