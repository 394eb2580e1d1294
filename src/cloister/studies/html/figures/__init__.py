"""Figures as plotly draws them, a file for each kind, in the colors of the light page (report.js has the dark ones)."""
