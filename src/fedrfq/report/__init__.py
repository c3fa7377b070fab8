"""A run, or several, as one page of HTML: opens from disk, asks no network for anything, and shows all there is."""
