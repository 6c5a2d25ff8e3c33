"""Small layers on NVIDIA GPUs by Pallas kernels, which are imported only where they run (`fedgen.models.dispatch`)."""
