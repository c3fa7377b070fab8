"""What `fedrfq new` writes: a plugin of each kind that runs as it is, and its test.

`example-method`, `ExampleMethod` and `example_method` are replaced by the user's name.
"""
