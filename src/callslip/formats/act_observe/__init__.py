"""`act-observe`: the events of an agent runtime that reports its actions (`act`) and their results (`observe`)."""
