"""How hooks get into a process, once, and out again. Knows nothing of EAGLE."""
