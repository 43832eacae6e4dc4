"""What is known of draft checkpoints, from `config.json` and safetensors headers alone."""
