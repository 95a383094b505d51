"""``python -m tonnage_lab``: the lab, of a checkout."""

from tonnage_lab.command import lab

lab(prog_name="python -m tonnage_lab")
