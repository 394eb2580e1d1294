"""What only a GPU has: captured graphs, and convolutions chosen by timing."""
