"""How training proceeds: collect, update, evaluate, checkpoint, stop."""
