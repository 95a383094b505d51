-- Health of a ModelDeployment for Argo CD, by its conditions. Global: obj. Returns status, message.

local function conditions_by_type(status)
  local found = {}
  for _, each in ipairs(status.conditions or {}) do
    found[each.type] = each
  end
  return found
end

local function told(condition)
  return condition.reason .. ": " .. (condition.message or "")
end

local function is(condition, status)
  return condition ~= nil and condition.status == status
end

local left_to_others = { ConflictingWriter = true, ConflictingScaler = true, ScaledToZeroExternally = true }
local status = obj.status or {}
local generation = obj.metadata.generation or 0
local scaling = (obj.spec or {}).scaling or {}
local by_type = conditions_by_type(status)
local ready = by_type.Ready

if ready == nil or (status.observedGeneration or 0) < generation then
  return { status = "Progressing", message = "the operator has not looked at this version yet" }
end
if is(by_type.Stalled, "True") then
  return { status = "Degraded", message = told(by_type.Stalled) }
end
local capacity = is(by_type.CapacityAvailable, "False") and by_type.CapacityAvailable
if ready.reason == "PodsFailing" then
  return { status = "Degraded", message = told(capacity or ready) }
end
if scaling.mode == "Paused" then
  return { status = "Suspended", message = "paused: nothing is written but status" }
end
if is(by_type.Approved, "False") then
  return { status = "Suspended", message = told(by_type.Approved) }
end
local active = by_type.ScalingActive
if is(active, "False") and left_to_others[active.reason] then
  return { status = "Degraded", message = told(active) }
end
if is(by_type.Reconciling, "True") then
  return { status = "Progressing", message = told(capacity or by_type.Reconciling) }
end
if is(by_type.PlanValid, "False") then
  return { status = "Degraded", message = told(by_type.PlanValid) }
end
if is(active, "False") and scaling.mode ~= "Recommend" then
  return { status = "Degraded", message = told(active) }
end
if not is(ready, "True") then
  return { status = "Progressing", message = told(capacity or ready) }
end
return { status = "Healthy", message = told(ready) }
