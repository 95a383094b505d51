"""What pods, engines and other writers of an object do."""
