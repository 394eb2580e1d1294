"""What both sides sign, and how it is verified."""
