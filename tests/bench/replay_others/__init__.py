"""Models of autoscalers that only the replay benchmark compares, with the tests of each."""
