// Shared by the kernel benchmarks: the pool, the limits and the counters.
#pragma once

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/select.h"
#include "tests/bench/kernels/machine_limits.h"

namespace baton::kernels {

// Pools, workspaces and measured limits for 1 and 2 threads, made on first use.
struct BenchMachine {
  explicit BenchMachine(int threads)
      : pool(threads),
        workspace(CpuOps().workspace_bytes(threads, 1 << 16, 256)),
        limits(MeasureMachine(pool)) {
    context.pool = &pool;
    context.workspace = &workspace;
  }
  ThreadPool pool;
  Buffer workspace;
  MachineLimits limits;
  ExecContext context;
};

inline BenchMachine& Machine(int64_t threads) {
  if (threads == 1) {
    static BenchMachine one(1);
    return one;
  }
  static BenchMachine two(2);
  return two;
}

inline std::vector<float> RandomFloats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

inline std::vector<uint16_t> RandomBF16(size_t count, uint32_t seed) {
  std::vector<uint16_t> values(count);
  const std::vector<float> floats = RandomFloats(count, seed);
  for (size_t i = 0; i < count; ++i) {
    values[i] = F32ToBF16(floats[i] * 0.05f);
  }
  return values;
}

// Largest |a - b| over the largest |b|.
inline double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0;
  double magnitude = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference = std::fmax(difference, std::fabs(double{a[i]} - double{b[i]}));
    magnitude = std::fmax(magnitude, std::fabs(double{b[i]}));
  }
  return difference / magnitude;
}

// FLOP/s, bytes/s and their shares of what the machine was measured to do.
inline void Report(benchmark::State& state,
                   const MachineLimits& limits,
                   double flops,
                   double bytes) {
  using benchmark::Counter;
  const auto rate = [&](double amount) {
    return Counter(amount * static_cast<double>(state.iterations()), Counter::kIsRate);
  };
  state.counters["FLOP/s"] = rate(flops);
  state.counters["bytes/s"] = rate(bytes);
  state.counters["%FMA"] = rate(100.0 * flops / limits.flops_per_second);
  state.counters["%memory"] = rate(100.0 * bytes / limits.bytes_per_second);
}

}  // namespace baton::kernels
