"""Pure tensor maths: returns, losses, schedules. No modules, no state."""
