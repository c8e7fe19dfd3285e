"""The main job on real data with a small real model, once to look at or left standing with its UI."""
