"""The operations that `torch.export` leaves, in JAX; importing this registers them."""

from fedgen.models.torch.operations import arithmetic as arithmetic
from fedgen.models.torch.operations import layers as layers
from fedgen.models.torch.operations import norms as norms
from fedgen.models.torch.operations import pooling as pooling
from fedgen.models.torch.operations import random as random
from fedgen.models.torch.operations import recurrent as recurrent
from fedgen.models.torch.operations import reductions as reductions
from fedgen.models.torch.operations import shapes as shapes
