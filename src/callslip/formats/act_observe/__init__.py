"""`act-observe`: the events of an agent runtime that says what it does (`act`) and what came of it (`observe`)."""
