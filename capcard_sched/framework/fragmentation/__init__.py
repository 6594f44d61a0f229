"""The use of free devices: `request_mix` lists the requests of pods, `node_value` rates nodes, `free_cards` counts."""
