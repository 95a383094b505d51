-- Agrees to the plan that waits, the first of them if two do. Global: obj. Returns the object.
-- The operator computes the digest anew: one that is stale agrees to nothing.

local annotations = obj.metadata.annotations or {}
annotations["tonnage.dev/approve"] = obj.status.proposals[1].digest
obj.metadata.annotations = annotations
return obj
