// A stage of many models at once: convolution, dropout by channel, max-pooling, ReLU.
//
// One block computes one client. The sizes are macros, so that loops are unrolled:
//   INPUTS, OUTPUTS, HEIGHT, WIDTH, KERNEL, POOL   of the stage
//   TILE                                           samples that lie in shared memory at a time
//   GROUP                                          outputs that a thread computes together
//   THREADS                                        of a block, a multiple of 32
//   REAL                                           float or double
//
// A pooling window passes its gradient to one of its pixels, a ReLU to those above 0, dropout to the
// channels that were kept: so most of a convolution's gradients are exactly 0, and are passed over.
//
// Sums have one order, whatever is stacked: a client's samples one after the other, and no atomic
// operations. So the same client gets the same bytes in any company.

constexpr int ROWS = (HEIGHT - KERNEL + 1) / POOL;
constexpr int COLS = (WIDTH - KERNEL + 1) / POOL;
constexpr int PIXELS = ROWS * COLS;
constexpr int PLANE = HEIGHT * WIDTH;
constexpr int IMAGE = INPUTS * PLANE;
constexpr int TAPS = KERNEL * KERNEL;
constexpr int FILTER = INPUTS * TAPS;
constexpr int WINDOW = POOL * POOL;
constexpr int PATCH = POOL + KERNEL - 1;
constexpr int GROUPS = (OUTPUTS + GROUP - 1) / GROUP;
constexpr int WIDE = GROUPS * GROUP;
constexpr int WARPS = THREADS / 32;
// Warps that share an output's filter where the filter is small.
constexpr int PARTS = WARPS > OUTPUTS ? WARPS / OUTPUTS : 1;
constexpr int LANE_TAPS = (TAPS + 31) / 32;
constexpr int LANE_FILTER = (FILTER + 31) / 32;
constexpr bool SMALL = FILTER <= 32;

__device__ inline void copy(REAL* to, const REAL* from, int count) {
  for (int i = threadIdx.x; i < count; i += THREADS) to[i] = from[i];
}

// Shared memory: TILE × IMAGE, FILTER × WIDE and WIDE numbers.
extern "C" __global__ void __launch_bounds__(THREADS)
stage_forward(int samples, const REAL* x, const REAL* w, const REAL* b, const REAL* keep, REAL* out,
              unsigned char* place) {
  extern __shared__ REAL memory[];
  REAL* images = memory;
  REAL* filters = images + TILE * IMAGE;
  REAL* biases = filters + FILTER * WIDE;
  const long client = blockIdx.x;
  x += client * samples * IMAGE;
  w += client * OUTPUTS * FILTER;
  b += client * OUTPUTS;
  keep += client * samples * OUTPUTS;
  out += client * samples * OUTPUTS * PIXELS;
  place += client * samples * OUTPUTS * PIXELS;

  // Outputs lie next to each other, so that a group is read at once.
  for (int i = threadIdx.x; i < FILTER * WIDE; i += THREADS) {
    int o = i % WIDE;
    filters[i] = o < OUTPUTS ? w[o * FILTER + i / WIDE] : REAL(0);
  }
  for (int o = threadIdx.x; o < WIDE; o += THREADS) biases[o] = o < OUTPUTS ? b[o] : REAL(0);

  for (int first = 0; first < samples; first += TILE) {
    const int here = min(TILE, samples - first);
    __syncthreads();  // nobody reads the samples before any more
    copy(images, x + long(first) * IMAGE, here * IMAGE);
    __syncthreads();
    for (int task = threadIdx.x; task < here * GROUPS * PIXELS; task += THREADS) {
      const int pixel = task % PIXELS;
      const int s = task / PIXELS % here;
      const int o0 = task / PIXELS / here * GROUP;
      const int corner = (pixel / COLS * POOL) * WIDTH + pixel % COLS * POOL;
      REAL sum[GROUP][WINDOW];
#pragma unroll
      for (int o = 0; o < GROUP; o++)
#pragma unroll
        for (int v = 0; v < WINDOW; v++) sum[o][v] = biases[o0 + o];
      for (int c = 0; c < INPUTS; c++) {
        const REAL* from = images + s * IMAGE + c * PLANE + corner;
        REAL patch[PATCH][PATCH];
#pragma unroll
        for (int i = 0; i < PATCH; i++)
#pragma unroll
          for (int j = 0; j < PATCH; j++) patch[i][j] = from[i * WIDTH + j];
#pragma unroll
        for (int i = 0; i < KERNEL; i++)
#pragma unroll
          for (int j = 0; j < KERNEL; j++) {
            const REAL* weights = filters + (c * TAPS + i * KERNEL + j) * WIDE + o0;
#pragma unroll
            for (int o = 0; o < GROUP; o++)
#pragma unroll
              for (int v = 0; v < WINDOW; v++)
                sum[o][v] += weights[o] * patch[i + v / POOL][j + v % POOL];
          }
      }
#pragma unroll
      for (int o = 0; o < GROUP; o++) {
        if (o0 + o >= OUTPUTS) continue;
        // Of equal pixels the first wins; what is not a number is passed on.
        REAL most = sum[o][0];
        int where = 0;
#pragma unroll
        for (int v = 1; v < WINDOW; v++)
          if (sum[o][v] > most || sum[o][v] != sum[o][v]) {
            most = sum[o][v];
            where = v;
          }
        const REAL factor = keep[long(first + s) * OUTPUTS + o0 + o];
        const REAL value = factor == 0 ? REAL(0) : most * factor;
        const long at = (long(first + s) * OUTPUTS + o0 + o) * PIXELS + pixel;
        out[at] = value <= 0 ? REAL(0) : value;
        place[at] = where;
      }
    }
  }
}

// Add a tile's part to a gradient; the first tile begins it. Each number is one thread's.
__device__ inline void add(REAL* gradient, REAL part, bool begins) {
  *gradient = begins ? part : *gradient + part;
}

__device__ inline REAL sum_over_lanes(REAL value) {
#pragma unroll
  for (int apart = 16; apart; apart >>= 1) value += __shfl_xor_sync(~0u, value, apart);
  return value;
}

// Small filters: the lanes of a warp share an output's gradients, each with a filter of its own.
__device__ void small_filters(int here, const REAL* images, const REAL* grads, const int* places,
                              REAL* parts, REAL* grad_w, REAL* grad_b, bool begins) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  for (int task = warp; task < OUTPUTS * PARTS; task += WARPS) {
    const int o = task / PARTS;
    REAL sum[FILTER + 1];
#pragma unroll
    for (int i = 0; i <= FILTER; i++) sum[i] = 0;
    for (int e = task % PARTS * 32 + lane; e < here * PIXELS; e += PARTS * 32) {
      const int s = e / PIXELS;
      const int at = (s * OUTPUTS + o) * PIXELS + e % PIXELS;
      const REAL g = grads[at];
      if (g == 0) continue;
      const REAL* from = images + s * IMAGE + places[at];
#pragma unroll
      for (int c = 0; c < INPUTS; c++)
#pragma unroll
        for (int t = 0; t < TAPS; t++)
          sum[c * TAPS + t] += g * from[c * PLANE + t / KERNEL * WIDTH + t % KERNEL];
      sum[FILTER] += g;
    }
#pragma unroll
    for (int i = 0; i <= FILTER; i++) {
      const REAL total = sum_over_lanes(sum[i]);
      if (lane == 0) parts[task * (FILTER + 1) + i] = total;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < OUTPUTS * (FILTER + 1); i += THREADS) {
    const int o = i / (FILTER + 1);
    const int f = i % (FILTER + 1);
    REAL total = 0;
    for (int part = 0; part < PARTS; part++)
      total += parts[(o * PARTS + part) * (FILTER + 1) + f];
    add(f < FILTER ? grad_w + o * FILTER + f : grad_b + o, total, begins);
  }
}

// Large filters: the lanes of a warp share an output's filter, and see its gradients together.
__device__ void large_filters(int here, const REAL* images, const REAL* grads, const int* places,
                              REAL* grad_w, REAL* grad_b, bool begins) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  int offset[LANE_FILTER];
#pragma unroll
  for (int m = 0; m < LANE_FILTER; m++) {
    const int i = lane + 32 * m < FILTER ? lane + 32 * m : 0;
    offset[m] = i / TAPS * PLANE + i % TAPS / KERNEL * WIDTH + i % KERNEL;
  }
  for (int o = warp; o < OUTPUTS; o += WARPS) {
    REAL sum[LANE_FILTER];
    REAL bias = 0;
#pragma unroll
    for (int m = 0; m < LANE_FILTER; m++) sum[m] = 0;
    for (int s = 0; s < here; s++)
      for (int p = 0; p < PIXELS; p++) {
        const int at = (s * OUTPUTS + o) * PIXELS + p;
        const REAL g = grads[at];
        if (g == 0) continue;
        const REAL* from = images + s * IMAGE + places[at];
#pragma unroll
        for (int m = 0; m < LANE_FILTER; m++) sum[m] += g * from[offset[m]];
        bias += g;
      }
#pragma unroll
    for (int m = 0; m < LANE_FILTER; m++)
      if (lane + 32 * m < FILTER) add(grad_w + o * FILTER + lane + 32 * m, sum[m], begins);
    if (lane == 0) add(grad_b + o, bias, begins);
  }
}

// The gradients of the images: a warp has a channel of a sample, and its lanes the taps.
__device__ void image_gradients(int here, const REAL* filters, const REAL* grads, const int* places,
                                REAL* grad_images) {
  const int lane = threadIdx.x % 32;
  for (int task = threadIdx.x / 32; task < here * INPUTS; task += WARPS) {
    const int s = task / INPUTS;
    const int c = task % INPUTS;
    REAL* plane = grad_images + s * IMAGE + c * PLANE;
    for (int i = lane; i < PLANE; i += 32) plane[i] = 0;
    __syncwarp();
    for (int o = 0; o < OUTPUTS; o++) {
      const REAL* filter = filters + o * FILTER + c * TAPS;
      for (int p = 0; p < PIXELS; p++) {
        const int at = (s * OUTPUTS + o) * PIXELS + p;
        const REAL g = grads[at];
        if (g == 0) continue;
#pragma unroll
        for (int m = 0; m < LANE_TAPS; m++) {
          const int t = lane + 32 * m;
          if (t < TAPS) plane[places[at] + t / KERNEL * WIDTH + t % KERNEL] += g * filter[t];
        }
        __syncwarp();  // the next window may cover the same pixels
      }
    }
  }
}

// Shared memory: TILE × IMAGE, TILE × OUTPUTS × PIXELS and, of small filters, OUTPUTS × PARTS ×
// (FILTER + 1) numbers; where images have gradients OUTPUTS × FILTER and TILE × IMAGE more; and
// TILE × OUTPUTS × PIXELS integers.
extern "C" __global__ void __launch_bounds__(THREADS)
stage_backward(int samples, const REAL* x, const REAL* w, const REAL* keep, const REAL* out,
               const unsigned char* place, const REAL* grad_out, REAL* grad_w, REAL* grad_b,
               REAL* grad_x) {
  extern __shared__ REAL memory[];
  REAL* images = memory;
  REAL* grads = images + TILE * IMAGE;
  REAL* parts = grads + TILE * OUTPUTS * PIXELS;
  REAL* filters = parts + (SMALL ? OUTPUTS * PARTS * (FILTER + 1) : 0);
  REAL* grad_images = filters + (grad_x ? OUTPUTS * FILTER : 0);
  int* places = (int*)(grad_images + (grad_x ? TILE * IMAGE : 0));
  const long client = blockIdx.x;
  const long outputs = client * samples * OUTPUTS * PIXELS;
  x += client * samples * IMAGE;
  w += client * OUTPUTS * FILTER;
  keep += client * samples * OUTPUTS;
  out += outputs;
  place += outputs;
  grad_out += outputs;
  grad_w += client * OUTPUTS * FILTER;
  grad_b += client * OUTPUTS;
  if (grad_x) {
    grad_x += client * samples * IMAGE;
    copy(filters, w, OUTPUTS * FILTER);
  }

  for (int first = 0; first < samples; first += TILE) {
    const int here = min(TILE, samples - first);
    const long before = long(first) * OUTPUTS * PIXELS;
    __syncthreads();  // nobody reads the samples before any more
    copy(images, x + long(first) * IMAGE, here * IMAGE);
    for (int i = threadIdx.x; i < here * OUTPUTS * PIXELS; i += THREADS) {
      const int pixel = i % PIXELS;
      const int where = place[before + i];
      places[i] = (pixel / COLS * POOL + where / POOL) * WIDTH + pixel % COLS * POOL + where % POOL;
      const REAL factor = keep[long(first) * OUTPUTS + i / PIXELS];
      grads[i] = out[before + i] <= 0 ? REAL(0) : grad_out[before + i] * factor;
    }
    __syncthreads();
    if constexpr (SMALL) {
      small_filters(here, images, grads, places, parts, grad_w, grad_b, first == 0);
    } else {
      large_filters(here, images, grads, places, grad_w, grad_b, first == 0);
    }
    if (grad_x) {
      image_gradients(here, filters, grads, places, grad_images);
      __syncthreads();
      copy(grad_x + long(first) * IMAGE, grad_images, here * IMAGE);
    }
  }
}
