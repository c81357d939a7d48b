"""Trained policies and their experience for use elsewhere: self-contained models, datasets of transitions."""
