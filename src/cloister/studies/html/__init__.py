"""The report: many runs as one page that needs nothing but a browser.

discover.py     which folders hold runs, and what their study calls them
gather.py       what they tell, as plain data: groups of runs that differ only in their seed
over_seeds.py   means, spreads and intervals over seeds
tables.py       what stands in tables
figures/        what is drawn, a file for each kind of figure
sections.py     what is on the page, in which order
render.py       the page
templates/      its text, style and behavior
"""
