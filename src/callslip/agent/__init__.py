"""A small agent: a loop between a model and a shell. Importing this loads nothing."""
