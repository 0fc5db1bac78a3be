"""Pure functions over the model: lifecycle, fold, text, projection, redaction, schemas, shell commands."""
