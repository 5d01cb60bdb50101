"""The store's record of every job and unit: the truth, of which messages are only hints."""
