"""The order of the stages; nothing here runs on a GPU."""
