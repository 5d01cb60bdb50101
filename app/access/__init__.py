"""Who may do what: tokens, the audit log, and the store's users that nodes are given."""
