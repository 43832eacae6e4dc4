"""Where a server's processes are in their start, and why one stalls: no torch, no sglang."""
