"""Data-parallel training with numpy: logistic regression on points of two clouds.

    annulus-run -np 4 python3 logistic_regression.py

Every rank has its share of the points. The gradient of all of them is the sum of the ranks' gradients, so each step is
one allreduce; the loss travels with it. Any number of ranks computes the same, up to rounding.
"""

import numpy as np

import pyannulus

POINTS, FEATURES, STEPS, RATE = 4000, 20, 60, 2.0

pyannulus.init()  # Rank, size and meeting point come from the launcher.
rank, size = pyannulus.rank(), pyannulus.size()

# All ranks draw the same points, as if they read one data set, and each keeps every size-th of them.
random = np.random.default_rng(seed=1)
labels = random.integers(0, 2, POINTS)
points = random.normal(size=(POINTS, FEATURES)) + np.where(labels[:, None] == 1, 0.4, -0.4)
points, labels = points[rank::size], labels[rank::size]

# Rank 0 draws the first weights; the others get them.
weights = random.normal(size=FEATURES) if rank == 0 else np.empty(FEATURES)
pyannulus.broadcast(weights, root=0)

sums = np.empty(FEATURES + 1)  # The gradient, and behind it the loss.
for step in range(1, STEPS + 1):
    scores = points @ weights
    chances = 1 / (1 + np.exp(-scores))
    sums[:-1] = points.T @ (chances - labels)
    sums[-1] = np.sum(np.logaddexp(0, scores) - labels * scores)
    pyannulus.allreduce(sums, out=sums)  # In place.
    weights -= RATE / POINTS * sums[:-1]
    if rank == 0 and step % 10 == 0:
        print(f"step {step} loss {sums[-1] / POINTS:.9f}", flush=True)

right = np.array([np.count_nonzero((points @ weights > 0) == labels)])
pyannulus.allreduce(right, out=right)
if rank == 0:
    print(f"{right[0] / POINTS:.1%} of the points are told right")
pyannulus.finalize()
