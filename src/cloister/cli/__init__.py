"""The command line. Nothing is imported here, so that Ctrl-C can be provided for before anything heavy is."""
