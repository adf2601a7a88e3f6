"""Loaded last by the fork server: no rank looks through the modules of libraries for garbage, or copies their pages to do so."""

import gc

gc.collect()
gc.freeze()
gc.enable()
