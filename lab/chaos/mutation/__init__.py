"""Small changes to the code, one at a time: each must make a test fail, or be listed with the reason why none can."""
