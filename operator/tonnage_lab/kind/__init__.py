"""A cluster of kind in place of our own processes: real kubelets, containers, DNS and Services.

``deploy/kind/README.md`` says what runs where, and what it leaves on a machine: nothing.
"""
