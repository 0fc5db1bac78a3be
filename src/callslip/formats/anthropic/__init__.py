"""`anthropic`: the Messages API. It reads streams, full messages and requests, and writes histories."""
