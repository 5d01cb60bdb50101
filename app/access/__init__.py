"""Access control: tokens, the audit log, and the store's users for nodes."""
