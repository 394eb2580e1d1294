"""Completion by the Tab key: scripts for shells, and what they ask this program for."""
