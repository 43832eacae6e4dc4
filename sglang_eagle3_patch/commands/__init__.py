"""What `sglang-eagle3` can do, one file per command."""
