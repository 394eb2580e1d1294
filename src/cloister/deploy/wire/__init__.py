"""What travels: canonical JSON, signatures, safetensors bodies, messages."""
