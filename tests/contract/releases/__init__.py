"""The hooks on every supported release: real classes on the CPU, one process for each release."""
