"""The pytest plugin: texts that tests want judged are submitted as one job, and each test gets its own results."""
