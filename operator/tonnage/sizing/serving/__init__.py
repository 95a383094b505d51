"""What a replica serves under load, with which flags, and how many it takes."""
