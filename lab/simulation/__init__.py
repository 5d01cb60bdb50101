"""A provider and its clients in virtual time: hours in seconds, with the policy code that runs in production."""
