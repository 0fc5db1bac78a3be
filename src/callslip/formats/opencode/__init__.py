"""The sessions of opencode, as they are in its database and in the output of `opencode export`."""
