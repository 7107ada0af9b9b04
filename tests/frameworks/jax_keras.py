"""One process of a training by Keras's DataParallel on JAX, started by annulus-run. Prints the losses of each epoch, which must not depend on the
number of processes: all have the same global batch."""

import os

import numpy as np

import pyannulus.jax

pyannulus.jax.initialize()
os.environ["KERAS_BACKEND"] = "jax"

import jax  # noqa: E402
import keras  # noqa: E402


def main():
    keras.utils.set_random_seed(3)
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices(), auto_shard_dataset=False))
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    inputs = np.sin(np.arange(64 * 4)).reshape(64, 4).astype("float32")
    rank, size = jax.process_index(), jax.process_count()
    history = model.fit(inputs[rank::size], inputs.sum(1, keepdims=True)[rank::size], batch_size=16 // size, epochs=3, shuffle=False, verbose=0)
    print("losses", *(f"{loss:.4f}" for loss in history.history["loss"]), flush=True)


if __name__ == "__main__":
    main()
