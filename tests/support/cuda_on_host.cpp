// Runs the kernels of stage.cu on a CPU.
#include "cuda_on_host.h"
// Behind the header, whose names it uses.
#include "stage.cu"

// Numbers that are not there read as NaN, and what lies behind the kernel's part must stay so.
REAL memory[MEMORY / sizeof(REAL)];

template <class Kernel>
static bool run(int clients, long shared, Kernel kernel) {
  bool inside = true;
  for (int client = 0; client < clients; client++) {
    std::memset(memory, 0xff, sizeof memory);
    blockIdx.x = client;
    block_barrier = std::make_unique<std::barrier<>>(THREADS);
    warp_barriers.clear();
    for (int warp = 0; warp < THREADS / 32; warp++)
      warp_barriers.push_back(std::make_unique<std::barrier<>>(32));
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++)
      threads.emplace_back([&, t] {
        threadIdx.x = t;
        kernel();
      });
    for (auto& thread : threads) thread.join();
    auto* bytes = reinterpret_cast<unsigned char*>(memory);
    for (unsigned long i = shared; i < sizeof memory; i++) inside &= bytes[i] == 0xff;
  }
  return inside;
}

extern "C" bool forward(int clients, long shared, int samples, REAL* x, REAL* w, REAL* b,
                        REAL* keep, REAL* out, unsigned char* place) {
  return run(clients, shared, [&] { stage_forward(samples, x, w, b, keep, out, place); });
}

extern "C" bool backward(int clients, long shared, int samples, REAL* x, REAL* w, REAL* keep,
                         REAL* out, unsigned char* place, REAL* grad_out, REAL* grad_w,
                         REAL* grad_b, REAL* grad_x) {
  return run(clients, shared, [&] {
    stage_backward(samples, x, w, keep, out, place, grad_out, grad_w, grad_b, grad_x);
  });
}
