"""The page, as files: no build step, nothing from elsewhere."""
