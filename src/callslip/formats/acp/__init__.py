"""`acp`: traffic between a client and an agent that speak the Agent Client Protocol, version 1.

What is read is raw JSON, never a library's models of it: those drop unknown words and refuse unknown kinds.
"""
