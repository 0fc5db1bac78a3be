"""Notifications of pending requests and finished agents: webhooks that the operator's settings file names."""
