"""`anthropic`: the Messages API. Read are streams, whole messages and requests; written are histories it accepts."""
