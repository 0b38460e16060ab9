"""A directory for `PYTHONPATH`: interpreters that find it there are watched."""
