"""What the hooks of terminal agents send: recorded, and their requests for approval answered."""
