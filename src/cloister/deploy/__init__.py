"""A federation of machines: a server without data, nodes with their own rows, keys and ledgers, a wire between them."""
