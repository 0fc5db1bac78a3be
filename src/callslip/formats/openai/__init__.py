"""`openai` and `responses`: the two APIs of OpenAI and compatible servers.

They read streams, full responses, requests and single messages, and write histories.
"""
