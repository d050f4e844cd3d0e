"""Devices and what spans them: platforms, the mesh, shardings, processes, compiled programs, TPU topologies."""
