"""Crash and fuzz campaigns: broken disks, processes, files, configs and messages by the thousand (`make torture`).

campaign.py   cases that follow from a seed, counted; an interrupted campaign goes on
tiny_runs.py  ten methods on a toy task, and what a run has to come to, however it was interrupted
disk.py       a disk whose operations are counted, fail, and lose what was not synced
crashes.py    faults at every file operation of a run
kills.py      SIGKILL at random instants of real processes
damage.py     what can become of a file: bits, torn, swapped, put back, hostile
folders.py    tampered run folders
configs.py    fuzzed configs
data_files.py fuzzed data files
messages.py   fuzzed ledgers, checkpoints and messages
report.py     docs/torture.json and docs/torture.md
"""
