"""`acp`: what a client and an agent say to each other in the Agent Client Protocol, version 1 or the draft of 2.

What is read is raw JSON, never a library's models of it: those drop unknown words and refuse unknown kinds. Checked
against schema 1.19 of version 1, and the draft of version 2 as the TypeScript SDK 2.4 ships it.
"""
