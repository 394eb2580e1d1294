"""The papers' tables and figures as files: what was run, what was reported, and what comes out here."""
