"""The order of an epoch, as runtime/data/include/dtrain/data/epoch_order.h defines it for small data sets."""
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def epoch_order(size, seed=0, epoch=0):
    state = 0
    for part in (int.from_bytes(b"order", "big"), seed, epoch):
        state = mix((state + GAMMA + part) & MASK)
    order = list(range(size))
    for i in range(size, 1, -1):
        while True:
            state = (state + GAMMA) & MASK
            product = mix(state) * i
            if product & MASK >= (1 << 64) % i:
                break
        j = product >> 64
        order[i - 1], order[j] = order[j], order[i - 1]
    return order
