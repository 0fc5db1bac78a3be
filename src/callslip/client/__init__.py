"""Where a ledger or a server is, and how to talk to a server."""
