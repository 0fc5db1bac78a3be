"""`callslip wrap`: stands between a client and an agent, passes every byte on, and records what was said.

Two processes. The one in front only moves bytes: it starts the agent, copies both directions and puts each piece on a
tape. The other, the recorder, reads the tape, tells lines and conversations apart and writes the ledger. So nothing
that decoding or the disk takes can hold up the agent, and if the front is killed the recorder still ends the calls.
An MCP server is wrapped by the same parts: here it is the agent, and there is no desk.

    proxy.py     the agent, its signals, and the two directions
    tape.py      what passed, on its way to the recorder, and what the recorder says of it
    recorder.py  the process that writes the ledger
    policy.py    a file of rules that answer permission requests; desk.py applies them
    inbox.py     the front's requests that wait for an answer in the ledger; holding.py has the recorder's side of it
"""
