"""The store's record of every job and unit. It is the truth; messages are only hints."""
