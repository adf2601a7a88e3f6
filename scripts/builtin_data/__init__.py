"""Sources of the built-in Azerbaijani data."""
