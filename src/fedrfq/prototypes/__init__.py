"""Class prototypes: class means of features, pooling, and the fixed-point form of uploads."""
