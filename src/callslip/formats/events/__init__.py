"""`events`: the log as it is, for copies and for whoever wants to keep all of it."""
