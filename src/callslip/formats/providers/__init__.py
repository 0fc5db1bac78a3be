"""Shared by the formats of model providers: conversations in rounds, and results as text for a model."""
