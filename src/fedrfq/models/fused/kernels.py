"""The forward and backward pass of a stage for given sizes, in machine code.

A pooling window passes its gradient to one of its pixels, a ReLU to those above 0 and dropout to
the channels that were kept, so most of a convolution's gradients are exactly 0. The backward pass
computes with the others only; the forward pass skips the dropped channels.

Sums have one order, whatever is stacked and whatever the number of threads: a client's samples one
after the other, and each output's terms channel by channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from fedrfq.models.fused.machine_code import Array, Code, Kernel, Value, Variable, compiled

# A vector has 64 bytes: one register of AVX-512, several of other processors.
_VECTOR_BYTES = 64
# Output channels that are computed together, and share the images that are read.
_TOGETHER = (4, 1)
# Samples whose gradients are computed together: what they need stays in the cache.
_SAMPLES = 4
# Vectors that are summed up together: so many registers there are on larger processors.
_SUMS = 20


@dataclass(frozen=True)
class Sizes:
    """The sizes of a stage, for which its kernels are made."""

    bits: int  # of a float
    inputs: int
    outputs: int
    height: int
    width: int
    kernel: int
    pool: int

    @property
    def rows(self) -> int:
        """The rows after pooling."""
        return (self.height - self.kernel + 1) // self.pool

    @property
    def cols(self) -> int:
        """The columns after pooling."""
        return (self.width - self.kernel + 1) // self.pool

    @property
    def lanes(self) -> int:
        """The floats of a vector."""
        return _VECTOR_BYTES * 8 // self.bits

    @property
    def pixels(self) -> int:
        """The pixels of a channel after pooling."""
        return self.rows * self.cols

    @property
    def image(self) -> int:
        """The floats of an image."""
        return self.inputs * self.height * self.width

    @property
    def filter(self) -> int:
        """The floats of a filter."""
        return self.inputs * self.kernel**2

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """The start and the lanes of vectors that cover one row of a filter, over all inputs.

        The last may reach over the end of the row: its lanes are a power of two.
        """
        row = self.kernel * self.inputs
        rest = row % self.lanes
        chunks = [(at, self.lanes) for at in range(0, row - rest, self.lanes)]
        if rest:
            chunks.append((row - rest, 1 << (rest - 1).bit_length()))
        return chunks

    @property
    def padded_run(self) -> int:
        """The floats of one row of a filter in scratch: those that its vectors cover."""
        at, lanes = self.chunks[-1]
        return at + lanes

    @property
    def filters(self) -> int:
        """The floats of a client's filters in scratch."""
        return self.outputs * self.kernel * self.padded_run

    @property
    def images(self) -> int:
        """The floats of some samples' images in scratch; the last vector may end behind them."""
        return _SAMPLES * self.image + self.lanes

    def scratch(self) -> tuple[int, int]:
        """Return the floats and the integers that the backward pass needs for itself."""
        # One more: an element is written before it is known whether it counts.
        alive = _SAMPLES * self.pixels + 1
        return 2 * self.filters + 2 * self.images + alive, alive


@cache
def forward_kernel(sizes: Sizes) -> Kernel:
    """Return the forward pass.

    It is called with the number of clients and of samples, the images K × B × C × H × W, the
    filters K × O × C × k × k, the biases K × O, the factors of dropout K × B × O, O integers for
    itself, the outputs K × B × O × h × w, and as many bytes: which pixel of its window each was.
    """

    def write(
        code: Code,
        clients: Value,
        samples: Value,
        x: Array,
        w: Array,
        bias: Array,
        keep: Array,
        kept: Array,
        out: Array,
        place: Array,
    ) -> None:
        with code.loop(clients) as client, code.loop(samples) as sample:
            n = client * samples + sample
            forward = _Forward(
                code,
                sizes,
                image=x + n * sizes.image,
                w=w + client * (sizes.outputs * sizes.filter),
                bias=bias + client * sizes.outputs,
                keep=keep + n * sizes.outputs,
                kept=kept,
                out=out + n * (sizes.outputs * sizes.pixels),
                place=place + n * (sizes.outputs * sizes.pixels),
            )
            forward.sample()

    return compiled("stage_forward", sizes.bits, "nnffffifb", write)


@dataclass(frozen=True)
class _Forward:
    """The forward pass of one sample."""

    code: Code
    sizes: Sizes
    image: Array
    w: Array
    bias: Array
    keep: Array
    kept: Array
    out: Array
    place: Array

    def sample(self) -> None:
        """Compute all channels."""
        count = self._sort()
        done = Variable(self.code, self.code.integer(0))
        for together in _TOGETHER:
            with self.code.loop((count - done.get()) // together):
                self._channels([self.kept[done.get() + i] for i in range(together)])
                done.set(done.get() + together)

    def _sort(self) -> Value:
        """List the channels that are kept, and fill the others with 0; return how many are kept."""
        count = Variable(self.code, self.code.integer(0))
        with self.code.loop(self.sizes.outputs) as channel:
            dropped = self.keep[channel].compare("==", self.code.zero())
            self.kept[count.get()] = channel
            count.set(dropped.where(count.get(), count.get() + 1))
            with self.code.only_if(dropped), self.code.loop(self.sizes.pixels) as pixel:
                self.out[channel * self.sizes.pixels + pixel] = self.code.zero()
        return count.get()

    def _channels(self, channels: Sequence[Value]) -> None:
        """Compute some channels of the sample."""
        sizes = self.sizes
        # Windows must not straddle two vectors.
        whole = sizes.lanes // sizes.pool * sizes.pool
        used = sizes.cols * sizes.pool
        with self.code.loop(sizes.rows) as row:
            if used >= whole:
                with self.code.loop(used // whole) as tile:
                    self._tile(channels, row, tile * whole, whole)
            if used % whole:
                first = self.code.integer(used - used % whole)
                self._tile(channels, row, first, used % whole)

    def _tile(self, channels: Sequence[Value], row: Value, first: Value, lanes: int) -> None:
        """Compute some channels of a row after pooling, from some columns before it."""
        sizes = self.sizes
        sums = [
            [Variable(self.code, self.bias[c].spread(lanes)) for _ in range(sizes.pool)]
            for c in channels
        ]
        filters = [self.w + c * sizes.filter for c in channels]
        with self.code.loop(sizes.inputs) as c:
            window = self.image + (c * sizes.height + row * sizes.pool) * sizes.width + first
            taps = [own + c * sizes.kernel**2 for own in filters]
            self._convolve(window, taps, sums, lanes)
        for channel, own in zip(channels, sums, strict=True):
            self._pool(channel, [y.get() for y in own], row, first, lanes)

    def _convolve(
        self, window: Array, taps: Sequence[Array], sums: list[list[Variable]], lanes: int
    ) -> None:
        """Add what one input channel contributes: each row that is read serves all that need it."""
        k = self.sizes.kernel
        pool = self.sizes.pool
        for row in range(pool + k - 1):
            for kx in range(k):
                v = window.vector(row * self.sizes.width + kx, lanes)
                for y in range(max(0, row - k + 1), min(pool, row + 1)):
                    for tap, own in zip(taps, sums, strict=True):
                        weight = tap[(row - y) * k + kx].spread(lanes)
                        own[y].set(own[y].get() + weight * v)

    def _pool(
        self, channel: Value, rows: Sequence[Value], row: Value, first: Value, lanes: int
    ) -> None:
        """Write the first maximum of each window, 0 if it is less, and which pixel it was."""
        pool = self.sizes.pool
        factor = self.keep[channel].spread(lanes)
        pixels = [(v * factor).lanes(range(px, lanes, pool)) for v in rows for px in range(pool)]
        best = pixels[0]
        at = self.code.byte(0, lanes // pool)
        for number, v in enumerate(pixels[1:], start=1):
            # As PyTorch's: what is not a number wins.
            better = v.compare(">", best) | v.is_nan()
            best = better.where(v, best)
            at = better.where(self.code.byte(number, lanes // pool), at)
        zero = self.code.zero(lanes // pool)
        offset = channel * self.sizes.pixels + row * self.sizes.cols + first // pool
        self.out[offset] = best.compare("<=", zero).where(zero, best)
        self.place[offset] = at


@cache
def backward_kernel(sizes: Sizes, images: bool) -> Kernel:
    """Return the backward pass, with the gradients of the images or without.

    It is called with the number of clients and of samples, the images, filters, factors, outputs
    and places of the forward pass, the gradients of the outputs, floats and integers for itself
    (`Sizes.scratch`), and where to put the gradients of filters, biases and, if wanted, images.
    """

    def write(
        code: Code,
        clients: Value,
        samples: Value,
        x: Array,
        w: Array,
        keep: Array,
        out: Array,
        place: Array,
        grad_out: Array,
        floats: Array,
        integers: Array,
        grad_w: Array,
        grad_b: Array,
        *grad_x: Array,
    ) -> None:
        with code.loop(clients) as client:
            n = client * samples
            backward = _Backward(
                code,
                sizes,
                x=x + n * sizes.image,
                w=w + client * (sizes.outputs * sizes.filter),
                keep=keep + n * sizes.outputs,
                out=out + n * (sizes.outputs * sizes.pixels),
                place=place + n * (sizes.outputs * sizes.pixels),
                grad_out=grad_out + n * (sizes.outputs * sizes.pixels),
                floats=floats,
                places=integers,
                grad_w=grad_w + client * (sizes.outputs * sizes.filter),
                grad_b=grad_b + client * sizes.outputs,
                grad_x=[own + n * sizes.image for own in grad_x],
            )
            backward.client(samples)

    return compiled("stage_backward", sizes.bits, "nnffffbffiff" + "f" * images, write)


@dataclass(frozen=True)
class _Backward:
    """The backward pass of one client.

    In scratch a pixel's channels lie together, so that a row of a filter and the pixels under it
    are each one run of floats.
    """

    code: Code
    sizes: Sizes
    x: Array
    w: Array
    keep: Array
    out: Array
    place: Array
    grad_out: Array
    floats: Array
    places: Array
    grad_w: Array
    grad_b: Array
    grad_x: Sequence[Array]

    def client(self, samples: Value) -> None:
        """Compute the gradients of all samples, some samples at a time."""
        sizes = self.sizes
        w = self.floats
        grad_w = w + sizes.filters
        x = grad_w + sizes.filters
        grad_x = x + sizes.images
        grads = grad_x + sizes.images
        self._fill(w, 2 * sizes.filters)
        self._fill(self.grad_b, sizes.outputs)
        if self.grad_x:
            self._sort_filters(w, inwards=True)
        with self.code.loop((samples + (_SAMPLES - 1)) // _SAMPLES) as part:
            first = part * _SAMPLES
            left = samples - first
            count = left.compare("<", _SAMPLES).where(left, self.code.integer(_SAMPLES))
            self._sort_images(self.x + first * sizes.image, x, count, inwards=True)
            if self.grad_x:
                self._fill(grad_x, _SAMPLES * sizes.image)
            with self.code.loop(sizes.outputs) as channel:
                alive = self._alive(channel, first, count, grads)
                offset = channel * (sizes.kernel * sizes.padded_run)
                self._filter_gradients(grad_w + offset, x, grads, alive)
                if self.grad_x:
                    self._image_gradients(w + offset, grad_x, grads, alive)
            for own in self.grad_x:
                self._sort_images(own + first * sizes.image, grad_x, count, inwards=False)
        self._sort_filters(grad_w, inwards=False)

    def _fill(self, array: Array, count: int) -> None:
        with self.code.loop(count) as i:
            array[i] = self.code.zero()

    def _sort_filters(self, sorted_: Array, inwards: bool) -> None:
        """Copy filters into scratch, O × k × run; or their gradients out of it."""
        sizes = self.sizes
        k = sizes.kernel
        code = self.code
        with code.loop(sizes.outputs) as o, code.loop(sizes.inputs) as c, code.loop(k) as ky:
            inner = sorted_ + ((o * k + ky) * sizes.padded_run + c)
            outer = (o * sizes.inputs + c) * k**2 + ky * k
            for kx in range(k):
                if inwards:
                    inner[kx * sizes.inputs] = self.w[outer + kx]
                else:
                    self.grad_w[outer + kx] = inner[kx * sizes.inputs]

    def _sort_images(self, images: Array, sorted_: Array, count: Value, inwards: bool) -> None:
        """Copy images into scratch, where a pixel's channels lie together; or out of it."""
        sizes = self.sizes
        pixels = sizes.height * sizes.width
        code = self.code
        with code.loop(count) as n, code.loop(sizes.inputs) as c, code.loop(pixels) as pixel:
            outer = n * sizes.image + c * pixels + pixel
            inner = n * sizes.image + pixel * sizes.inputs + c
            if inwards:
                sorted_[inner] = images[outer]
            else:
                images[outer] = sorted_[inner]

    def _alive(self, channel: Value, first: Value, count: Value, grads: Array) -> Value:
        """List a channel's gradients that are not 0, and where they go; return how many."""
        sizes = self.sizes
        code = self.code
        alive = Variable(code, code.integer(0))
        total = Variable(code, self.grad_b[channel])
        with code.loop(count) as n:
            own = (first + n) * sizes.outputs + channel
            factor = self.keep[own]
            kept = factor.compare("!=", code.zero())
            with code.only_if(kept), code.loop(sizes.rows) as row, code.loop(sizes.cols) as col:
                pixel = own * sizes.pixels + row * sizes.cols + col
                grad = self.grad_out[pixel] * factor
                grad = self.out[pixel].compare("<=", code.zero()).where(code.zero(), grad)
                at = code.widened(self.place[pixel])
                y = row * sizes.pool + at // sizes.pool
                x = col * sizes.pool + at % sizes.pool
                grads[alive.get()] = grad
                self.places[alive.get()] = (y * sizes.width + x) * sizes.inputs + n * sizes.image
                # Written in any case, and overwritten by the next if it is 0: there is no jump.
                more = grad.compare("!=", code.zero()) | grad.is_nan()
                alive.set(more.where(alive.get() + 1, alive.get()))
                total.set(total.get() + grad)
        self.grad_b[channel] = total.get()
        return alive.get()

    def _groups(self) -> Iterator[list[tuple[int, int, int]]]:
        """Yield the vectors of a filter, as many at a time as there are registers.

        Each is where it lies in the filter, where in the images, and its lanes.
        """
        sizes = self.sizes
        vectors = [
            (ky * sizes.padded_run + at, ky * sizes.width * sizes.inputs + at, lanes)
            for ky in range(sizes.kernel)
            for at, lanes in sizes.chunks
        ]
        for first in range(0, len(vectors), _SUMS):
            yield vectors[first : first + _SUMS]

    def _filter_gradients(self, grad_w: Array, x: Array, grads: Array, alive: Value) -> None:
        """Add each gradient times the pixels that its window saw."""
        for group in self._groups():
            sums = [Variable(self.code, grad_w.vector(at, lanes)) for at, _, lanes in group]
            with self.code.loop(alive) as i:
                seen = x + self.places[i]
                for own, (_, offset, lanes) in zip(sums, group, strict=True):
                    own.set(own.get() + grads[i].spread(lanes) * seen.vector(offset, lanes))
            for own, (at, _, _) in zip(sums, group, strict=True):
                grad_w[at] = own.get()

    def _image_gradients(self, w: Array, grad_x: Array, grads: Array, alive: Value) -> None:
        """Add each gradient times the filter, where the window stood."""
        for group in self._groups():
            weights = [w.vector(at, lanes) for at, _, lanes in group]
            with self.code.loop(alive) as i:
                seen = grad_x + self.places[i]
                for weight, (_, offset, lanes) in zip(weights, group, strict=True):
                    moved = grads[i].spread(lanes) * weight
                    seen[offset] = seen.vector(offset, lanes) + moved
