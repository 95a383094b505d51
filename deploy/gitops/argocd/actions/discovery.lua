-- Which actions a ModelDeployment has now. Global: obj. Returns {name = {disabled = bool}}.

local scaling = (obj.spec or {}).scaling or {}
local proposals = (obj.status or {}).proposals or {}
local is_paused = scaling.mode == "Paused"

return {
  ["approve"] = { ["disabled"] = is_paused or proposals[1] == nil },
  ["pause"] = { ["disabled"] = is_paused },
  ["resume"] = { ["disabled"] = not is_paused },
}
