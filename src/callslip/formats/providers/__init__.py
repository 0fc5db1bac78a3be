"""What the formats of model providers share: conversations in rounds, and results in words that a model reads."""
