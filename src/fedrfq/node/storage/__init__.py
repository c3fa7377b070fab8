"""What a party keeps on disk: the write-ahead log, audit files, its folder."""
