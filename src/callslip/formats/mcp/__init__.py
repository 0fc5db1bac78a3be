"""`mcp`: what a client and a server say to each other in the Model Context Protocol, up to version 2026-07-28.

What is read is raw JSON, never a library's models of it. One `tools/call` is one call, whatever becomes of it: a
result, an error, progress, a cancellation, a task, questions in between. All else that is said is kept as `raw`, whole:
pings, lists, resources, prompts, log messages, and what the server asks of the client. Only a poll that tells nothing
new of its task leaves no event. There are no turns: a call is over when it is answered, or when the line is.

    wire.py     JSON-RPC: what each message is, who sent it, what it answers
    calls.py    the calls of one connection, and what becomes of each
    tasks.py    those that the server answers later
    results.py  what a result or an error says
    decode.py   which message is whose
"""
