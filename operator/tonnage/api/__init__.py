"""What users write and read: the ModelDeployment types and the CRD made from them."""
