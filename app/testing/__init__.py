"""The pytest plugin: what tests want judged goes out as one job, and each test gets its own results back."""
