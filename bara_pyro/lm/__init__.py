"""The frozen language model: loaded, checked, cut into parts, and the layers that adapters go to."""
