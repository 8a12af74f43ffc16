"""Opens a store without changing it, and computes the state and the timers that its log results in."""
