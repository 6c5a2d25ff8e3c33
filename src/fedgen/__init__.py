"""FedGen: data-free knowledge distillation for heterogeneous federated learning, and its baselines, in JAX."""
