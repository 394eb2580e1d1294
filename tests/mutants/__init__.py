"""Privacy bugs planted in a copy of the source, one at a time: for each, a test must fail (`make mutants`).

planted/*.toml  the bugs: what each breaks in words, the text that is replaced, and the tests that should notice
planted.py      reads them, and plants one in a text
trials.py       runs tests on copies of the source
report.py       docs/mutants.json and docs/mutants.md
"""
