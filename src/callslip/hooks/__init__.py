"""The hooks of agents in a terminal: their installation, what they send, and the answers to their requests."""
