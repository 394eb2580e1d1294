"""What a page's blocks find in their folder (`<!-- test: setup=NAME -->`): a module for each, with `prepare`."""
