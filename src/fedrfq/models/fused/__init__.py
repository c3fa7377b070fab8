"""A convolution stage as one operation on a CPU, whose backward pass skips what is exactly 0."""
