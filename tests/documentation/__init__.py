"""Tests of the site: it builds, its links lead somewhere, and its code blocks run."""
