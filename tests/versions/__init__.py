"""With which versions Cloister was tested, beside those of constraints.txt; what is found goes into a file.

    make test-minimal    a part of the tests with the lowest versions that pyproject.toml admits
    make test-pythons    what needs no torch, with Pythons that are there beside the one in use

Both write docs/tested-versions.json, which README.md shows.
"""
