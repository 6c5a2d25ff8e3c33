"""PyTorch modules as models: `torch.export` gives a graph of ATen operations, which are computed by JAX.

`export` makes the graph, `graph` evaluates it with `operations`, `layout` arranges samples as the module takes them,
and `build` makes a `Model` of it all. Modules that would train as something else are refused by `gradients`, `logits`
and `python_state`. `operation` adds an operation that is missing.
"""

from fedgen.models.torch import operations as operations  # first, so that a user's own replaces one of them
from fedgen.models.torch.registry import operation as operation
