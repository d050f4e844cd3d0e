"""JAX devices: platforms, the mesh, shardings, processes, compiled programs and TPU topologies."""
