"""One module per command: its options, and the order in which things are done."""
