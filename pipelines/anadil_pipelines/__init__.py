"""What decides the order of the stages; nothing here runs on a GPU."""
