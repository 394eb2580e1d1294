"""Many runs: comparisons, sweeps over keys and seeds, the papers' tables, tuning, and the report of all of them."""
