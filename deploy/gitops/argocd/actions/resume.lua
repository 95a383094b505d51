-- Lets a ModelDeployment go on in the mode that it was paused in. Global: obj. Returns the object.

local annotations = obj.metadata.annotations or {}
obj.spec.scaling.mode = annotations["tonnage.dev/mode-before-pause"] or "Auto"
annotations["tonnage.dev/mode-before-pause"] = nil
obj.metadata.annotations = annotations
return obj
