"""Text: requests to a voice assistant, as sequences of word numbers, sorted by a network with embeddings.

Every user asks for some things more often than for others. Needs `pip install flax`.
"""

import flax.linen as nn
import numpy as np

import fedgen

TOPICS = {
    "weather": "rain sun wind snow storm cloudy warm cold umbrella forecast outside degrees",
    "music": "song play album band louder guitar playlist radio singer piano jazz volume",
    "travel": "train flight ticket airport platform hotel luggage passport station map road delay",
    "cooking": "recipe oven salt onion boil pan soup bread butter minutes stir pepper",
}
COMMON = "please can you tell me what is the next a for today and in my some now how long should i it with to"
WORDS = " ".join([COMMON, *TOPICS.values()]).split()
NUMBER = {word: number for number, word in enumerate(WORDS, start=1)}  # 0: the request is over
LENGTH = 12
rng = np.random.default_rng(0)


def requests(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Requests of 4 to 12 words: a quarter are of the topic, some of any topic, and most say nothing."""
    topics = rng.integers(0, len(TOPICS), count)
    sources = [COMMON.split(), *(words.split() for words in TOPICS.values())]
    x = np.zeros((count, LENGTH), np.int32)
    for row, topic in zip(x, topics, strict=True):
        for place in range(rng.integers(4, LENGTH + 1)):
            source = rng.choice([0, topic + 1, rng.integers(1, len(sources))], p=[0.65, 0.25, 0.1])
            row[place] = NUMBER[rng.choice(sources[source])]
    return x, topics


class Reader(nn.Module):
    @nn.compact
    def __call__(self, words, train):
        said = (words > 0)[..., None]
        mean = (nn.Embed(len(WORDS) + 1, 16)(words) * said).sum(1) / said.sum(1)
        h = nn.Dropout(0.1, deterministic=not train)(nn.relu(nn.Dense(16)(mean)))
        return nn.Dense(len(TOPICS))(h)


data = fedgen.from_arrays(*requests(2000), *requests(500), name="requests")
summary = fedgen.simulate(["fedavg", "fedgen"], data=data, model=Reader(), users=10, active=5, rounds=40, lr=1.0)
print({row["algorithm"]: round(row["accuracy"], 1) for row in summary["results"]})
