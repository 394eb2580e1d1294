"""`make release`: what is published is built, its contents are compared with the tree, and it is tried as a user would.

python -m release            in the environment of constraints-release.txt, with tests/ on the path
python -m release --built    the same with what lies in dist/ already
"""
