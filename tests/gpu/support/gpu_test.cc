#include "tests/gpu/support/gpu_test.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/core/half.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"

namespace baton::kernels::cuda {
namespace {

// More than any op of these tests' shapes takes.
constexpr size_t kWorkspaceBytes = size_t{64} << 20;

}  // namespace

DeviceArray<uint16_t> Activations(std::span<const float> values) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    bits[i] = F32ToBF16(values[i]);
  }
  return DeviceArray<uint16_t>(bits);
}

std::vector<float> Widened(const DeviceArray<uint16_t>& values) {
  const std::vector<uint16_t> bits = values.Get();
  std::vector<float> widened(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    widened[i] = BF16ToF32(bits[i]);
  }
  return widened;
}

void GpuTest::SetUp() {
  ops_ = CudaOps();
  if (ops_ == nullptr) {
    GTEST_SKIP() << "no CUDA device";
  }
  absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(kWorkspaceBytes);
  ASSERT_TRUE(queue.ok()) << queue.status();
  queue_ = *std::move(queue);
  context_.queue = queue_.get();
}

void GpuTest::TearDown() {
  if (queue_ == nullptr) {
    return;
  }
  Wait();
  std::vector<uint32_t> counters(DeviceQueue::kCounters);
  ASSERT_EQ(cudaMemcpy(counters.data(),
                       queue_->counters(),
                       counters.size() * sizeof(uint32_t),
                       cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(counters, std::vector<uint32_t>(counters.size(), 0));
}

void GpuTest::Wait() const {
  const absl::Status status = queue_->Wait();
  ASSERT_TRUE(status.ok()) << status;
}

}  // namespace baton::kernels::cuda
