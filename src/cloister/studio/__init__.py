"""`cloister studio`: a page on this machine that shows runs, follows those under way, and plans others.

access.py       who may ask: a token, a cookie, loopback names, and the headers of every answer
places.py       which folders may be read: those below one folder, whatever links say
tail.py         the lines of a file that grows, and whether somebody is at work on a run
listing.py      which runs and studies there are, in a few values each
run_view.py     what the page of one run shows
study_view.py   what the page of several runs shows: that of the report
planner_page.py the planner's sliders
planner.py      a plan as plain values
plan_worker.py  the process that computes plans: one that takes long keeps nobody waiting, and can be ended
plan_process.py how that process is asked
static.py       files that pages ask for
app.py          the addresses
serve.py        the server
pages/          templates, style and behavior

Nothing here writes into a run.
"""
