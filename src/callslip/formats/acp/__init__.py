"""`acp`: the messages between a client and an agent in the Agent Client Protocol, version 1 or the draft of 2.

The decoder reads raw JSON instead of a library's models, which drop unknown fields and reject unknown kinds. Checked
against schema 1.19 of version 1, and the draft of version 2 as the TypeScript SDK 2.4 contains it.
"""
