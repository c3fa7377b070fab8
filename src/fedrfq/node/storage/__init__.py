"""What a party keeps on disk: the write-ahead log, the audit files, and its folder."""
