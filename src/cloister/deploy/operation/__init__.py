"""Setting a federation up and watching it: keys, TLS, trial, logs, status."""
