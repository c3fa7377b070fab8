// As much of CUDA as stage.cu uses, on a CPU: a thread of a block is a thread of the process, and
// blocks are computed one after the other.
#include <barrier>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

struct Index { int x; };
static thread_local Index threadIdx;
static Index blockIdx;
static std::unique_ptr<std::barrier<>> block_barrier;
static std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
static double said[THREADS];

#define __global__
#define __device__ static
#define __shared__
#define __launch_bounds__(threads)

static int min(int a, int b) { return a < b ? a : b; }
static void __syncthreads() { block_barrier->arrive_and_wait(); }
static void __syncwarp() { warp_barriers[threadIdx.x / 32]->arrive_and_wait(); }

static REAL __shfl_xor_sync(unsigned, REAL value, int apart) {
  said[threadIdx.x] = value;
  __syncwarp();
  REAL other = said[threadIdx.x ^ apart];
  __syncwarp();
  return other;
}
