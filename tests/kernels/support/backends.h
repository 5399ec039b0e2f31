// Back ends that a kernel test runs on, and the memory and random data it needs.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels {

// "reference", "portable", "avx2" and "avx512".
extern const std::vector<std::string> kBackends;
// The CPU back ends alone.
extern const std::vector<std::string> kCpuBackends;

// The table of a back end, or null when this machine lacks its instructions.
const OpTable* FindBackend(const std::string& name);

// A pool of `threads` threads with a workspace for heads up to 512, or of more bytes.
class TestContext {
 public:
  TestContext(const OpTable& ops, int threads, size_t least_workspace = 0);
  const ExecContext& operator*() const { return context_; }

 private:
  ThreadPool pool_;
  Buffer workspace_;
  ExecContext context_;
};

// Runs each test on one back end; a back end that the machine lacks is a visible skip.
class BackendTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  const OpTable& ops() const { return *ops_; }

 private:
  const OpTable* ops_ = nullptr;
};

// The seed of a randomised test: BATON_TEST_SEED or a fixed one; printed when the test fails.
uint32_t TestSeed();
std::string SeedMessage();

// Normally distributed values times `scale`.
std::vector<float> RandomFloats(size_t count, float scale = 1.0f);

// The same values rounded to `dtype` (f32 or bf16), as stored bytes, and widened again.
std::vector<std::byte> Encode(std::span<const float> values, DType dtype);
std::vector<float> RoundedTo(std::span<const float> values, DType dtype);

// A weight packed by `ops` from [out_features, in_features] values of `dtype`.
struct PackedWeight {
  PackedWeight(const OpTable& ops,
               const ExecContext& context,
               std::span<const float> values,
               int64_t out_features,
               int64_t in_features,
               DType dtype);
  Buffer bytes;
  PackedMatrix matrix;
};

// Largest |got - want| must be at most tolerance * max(1, largest |want|).
void ExpectNear(std::span<const float> got, std::span<const float> want, double tolerance);
// Every bit equal.
void ExpectSameBits(std::span<const float> got, std::span<const float> want);

}  // namespace baton::kernels
