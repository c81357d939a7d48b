"""How fast a configuration trains, what holds it back, and what would be faster: measured, not guessed."""
