"""A cluster of kind in place of our own processes: real kubelets, containers, DNS and Services.

``deploy/kind/README.md`` says what it takes.
"""
