"""Where the memory of a GPU goes, and what the cache in it holds."""
