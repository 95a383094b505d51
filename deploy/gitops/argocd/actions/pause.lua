-- Freezes a ModelDeployment, and notes the mode to go back to. Global: obj. Returns the object.

local annotations = obj.metadata.annotations or {}
annotations["tonnage.dev/mode-before-pause"] = obj.spec.scaling.mode or "Auto"
obj.metadata.annotations = annotations
obj.spec.scaling.mode = "Paused"
return obj
