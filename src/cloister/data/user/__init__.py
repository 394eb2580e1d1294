"""Tasks from people's own files."""
