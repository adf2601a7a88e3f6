"""Loaded first by the fork server: what the imports after it make is no garbage."""

import gc

gc.disable()
