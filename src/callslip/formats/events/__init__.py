"""`events`: the full event log, for copies and backups."""
