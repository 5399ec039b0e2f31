#include "tests/bench/kernels/machine_limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "kernels/core/buffer.h"

namespace baton::kernels {
namespace {

using Vector = float __attribute__((vector_size(BATON_BENCH_VECTOR_BYTES)));
constexpr int kSums = 12;
constexpr int64_t kSteps = 2'000'000;
constexpr size_t kStreamBytes = size_t{256} << 20;

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Twelve independent chains of fused multiply-adds: enough for two units of latency four.
float MultiplyAddChains() {
  Vector sums[kSums];
  std::memset(sums, 0, sizeof(sums));
  Vector x;
  std::memset(&x, 0, sizeof(x));
  for (int64_t step = 0; step < kSteps; ++step) {
    asm volatile("" : "+v"(x));
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      sums[i] = x * x + sums[i];
    }
  }
  float total = 0.0f;
  for (const Vector& sum : sums) {
    total += sum[0];
  }
  return total;
}

uint64_t SumWords(const uint64_t* words, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    for (size_t j = 0; j < 8; ++j) {
      sums[j] += words[i + j];
    }
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) {
    total += sum;
  }
  return total;
}

}  // namespace

MachineLimits MeasureMachine(ThreadPool& pool) {
  const int threads = pool.threads();
  Buffer stream(kStreamBytes);
  volatile float float_sink = 0.0f;
  volatile uint64_t word_sink = 0;
  MachineLimits limits;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const double flop_seconds = Seconds([&] {
      pool.ParallelFor(threads, [&](int64_t, int) { float_sink = MultiplyAddChains(); });
    });
    const double lanes = sizeof(Vector) / sizeof(float);
    limits.flops_per_second =
        std::max(limits.flops_per_second,
                 2.0 * lanes * kSums * static_cast<double>(kSteps) * threads / flop_seconds);
    const size_t slice_words = kStreamBytes / sizeof(uint64_t) / static_cast<size_t>(threads);
    const double stream_seconds = Seconds([&] {
      pool.ParallelFor(threads, [&](int64_t i, int) {
        word_sink =
            SumWords(stream.as<uint64_t>() + static_cast<size_t>(i) * slice_words, slice_words);
      });
    });
    limits.bytes_per_second =
        std::max(limits.bytes_per_second, static_cast<double>(kStreamBytes) / stream_seconds);
  }
  return limits;
}

}  // namespace baton::kernels
