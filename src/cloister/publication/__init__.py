"""What leaves the house: the published files of a run, a certificate that people can read, and how others check it."""
