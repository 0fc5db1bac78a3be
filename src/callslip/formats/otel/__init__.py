"""`otel`: the calls of a session as OpenTelemetry spans.

The names `gen_ai.*` are from its semantic conventions, which are still in development.
"""
